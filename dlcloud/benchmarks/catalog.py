"""The benchmarks; read by the launcher, so it imports no framework."""

from .command import arguments as command
from .language import arguments
from .mixed_precision import arguments as mixed_precision
from .quantization import arguments as quantization
from .tensorflow_cpu import arguments as tensorflow

BENCHMARKS = {
    program.ENTRY.name: program.ENTRY
    for program in (quantization, mixed_precision, tensorflow, arguments, command)
}
"""Every benchmark by its name in a recipe."""
