"""The benchmarks; read by the launcher, so it imports no framework."""

from .command import settings as command
from .language import settings as language
from .mixed_precision import settings as mixed_precision
from .quantization import settings as quantization
from .tensorflow_cpu import settings as tensorflow

BENCHMARKS = {
    program.ENTRY.name: program.ENTRY
    for program in (quantization, mixed_precision, tensorflow, language, command)
}
"""Every benchmark by its name in a recipe."""
