"""Every overload of every ATen op that a device registers, called with valid arguments on the CPU and on the device.

    python -m tests.overloads                         # all of them
    python -m tests.overloads 'aten::histc*' --all    # some, each call with its verdict
    python -m tests.overloads --record                # writes results/overloads.json

Arguments are real ones: op_db's samples run on the CPU, forward, backward and in forward mode, and every overload they
reach is recorded with its arguments (``capture``). Overloads that are not reached take the arguments of a sibling
(functional, in-place, out=; ``siblings``), and the rest is synthesised from the schema until the CPU accepts it
(``synthesis``). ``judge`` compares one overload; workers survive what crashes or hangs.
"""
