"""The main of an exported project: runs the model on the example inputs and prints the outputs."""

from __future__ import annotations

from bringup.graph.bare_metal.sources import Model, c_type, field_names
from bringup.graph.memory_plan import ALIGNMENT

_PRINTING = """\
static void put(char c) { *(volatile unsigned char *)(uintptr_t)0x10000000 = (unsigned char)c; }
static void text(const char *words) { while (*words) put(*words++); }
static void number(uint64_t value) {
  char digits[20];
  int count = 0;
  do digits[count++] = (char)('0' + value % 10);
  while (value /= 10);
  while (count) put(digits[--count]);
}
static void integer(int64_t value) {
  if (value < 0) put('-');
  number(value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}
/* Nine digits tell every float from its neighbours. */
static void real(double value) {
  int exponent = 0;
  if (value != value) { text("nan"); return; }
  if (value < 0) { put('-'); value = -value; }
  if (value > 1.7e308) { text("inf"); return; }
  if (value == 0) { put('0'); return; }
  while (value >= 10) { value /= 10; exponent++; }
  while (value < 1) { value *= 10; exponent--; }
  uint64_t digits = (uint64_t)(value * 1e8 + 0.5);
  if (digits >= 1000000000) { digits /= 10; exponent++; }
  put((char)('0' + digits / 100000000));
  put('.');
  for (uint64_t part = 10000000; part; part /= 10) put((char)('0' + digits / part % 10));
  if (exponent) { put('e'); integer(exponent); }
}
"""
_HALVES = {
    "float16": """\
static double half(uint16_t bits) {
  int exponent = bits >> 10 & 31;
  double value = bits & 1023;
  if (exponent == 31) value = (bits & 1023) ? 0.0 / 0.0 : 1.0 / 0.0;
  else for (value = exponent ? value + 1024 : value, exponent -= exponent ? 25 : 24; exponent; ) {
    if (exponent > 0) { value *= 2; exponent--; } else { value /= 2; exponent++; }
  }
  return bits >> 15 ? -value : value;
}
""",
    "bfloat16": """\
static double bhalf(uint16_t bits) {
  union { uint32_t bits; float value; } whole = {(uint32_t)bits << 16};
  return (double)whole.value;
}
""",
}


def main_source(model: Model) -> str:
    """The C text."""
    name, upper, program = model.name, model.upper, model.program
    arrays, fields, prints = [], [], []
    at = 0
    for tensor, field in zip(program.inputs, field_names(program.inputs, "in")):
        fields.append(f".{field} = (const {c_type(tensor.dtype)} *)(const void *)({name}_inputs + {at})")
        at += -(-tensor.nbytes // 64) * 64
    for tensor, field in zip(program.outputs, field_names(program.outputs, "out")):
        kind = c_type(tensor.dtype)
        arrays.append(f"static {kind} {field}[{max(tensor.elements, 1)}] __attribute__((aligned({ALIGNMENT})));")
        fields.append(f".{field} = {field}")
        shape = " x ".join(map(str, tensor.shape)) or "one number"
        prints.append(f'  text("{field}: {tensor.dtype.name}, {shape}\\n");')
        shown = {"float16": f"real(half({field}[at]))", "bfloat16": f"real(bhalf({field}[at]))"}.get(tensor.dtype.name)
        shown = shown or (f"real({field}[at])" if tensor.dtype.is_float else f"integer((int64_t){field}[at])")
        ends = f"at % 8 == 7 || at == {tensor.elements - 1}"
        prints.append(f"  for (int at = 0; at < {tensor.elements}; at++) {{ {shown}; put({ends} ? '\\n' : ' '); }}")
    halves = "".join(_HALVES[kind] for kind in _HALVES if any(t.dtype.name == kind for t in program.outputs))
    return f"""/* Runs {name} on the inputs that it was exported with, and prints its outputs. */
#include "{name}.h"

extern const unsigned char {name}_inputs[];
__asm__(".section .rodata.{name}_inputs, \\"a\\"\\n.balign 64\\n.globl {name}_inputs\\n{name}_inputs:\\n"
        ".incbin \\"{name}_inputs.bin\\"\\n.previous\\n");
{chr(10).join(arrays)}
static unsigned char arena[{upper}_ARENA_BYTES] __attribute__((aligned({upper}_ARENA_ALIGN)));

{_PRINTING}{halves}
static uintptr_t instructions(void) {{
  uintptr_t count;
  __asm__ volatile("csrr %0, minstret" : "=r"(count));
  return count;
}}

int main(void) {{
  const {name}_io io = {{{", ".join([*fields, ".on_step = 0"])}}};
  if ({name}_check()) {{
    text("{name}: the weights are damaged: their checksum is another one\\n");
    return 1;
  }}
  const uintptr_t before = instructions();
  const int failed = {name}_run(&io, arena);
  const uintptr_t after = instructions();
  if (failed) {{
    text("{name}: an index is out of range in step ");
    number((uint64_t)failed - 1);
    put('\\n');
    return 2;
  }}
{chr(10).join(prints)}
  text("instructions: ");
  number(after - before);
  put('\\n');
  return 0;
}}
"""
