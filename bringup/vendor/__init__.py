"""The vendor op table: a driver lists its tuned ops in one ``ops.toml``, and bringup generates everything around them.

table.py reads the file, formula.py is its language of sizes, routing.py turns an entry into a lowering that is tried
before the op's kernel, custom.py and define.py add ops that PyTorch does not have; the rest checks, documents and
writes out.
"""
