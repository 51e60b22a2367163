"""Say which benchmarks there are and what each needs; read by the launcher, so it imports no framework."""

import argparse
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Another requirements file, for when one of a parameter's values is this, or all are.

    Attributes:
        parameter: Its name.
        value: What is looked for; `*` stands for anything.
        requirements: File below `requirements`.
        alone: Whether no other value may stand beside it.
    """

    parameter: str
    value: str
    requirements: str
    alone: bool = False

    def made(self, values: Sequence[str]) -> bool:
        """Tell whether the values that are asked for make this choice."""
        made = [fnmatch.fnmatchcase(value, self.value) for value in values]
        return all(made) and any(made) if self.alone else any(made)


Parameters = Mapping[str, str | list[str]]
"""Values of parameters, as in a recipe; a list for several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a machine must have for a benchmark, or for one of its settings.

    Attributes:
        setting: Which of its settings; empty for the whole benchmark.
        gpu: Whether it takes an NVIDIA GPU.
        flags: CPU flags, as in hardware.FLAGS, of which one is enough.
        called: What people call the flags.
        memory_gib: Memory, as instance types are sold with.
        advice: Where it runs without, only worse: what to expect. Then nothing is left out.
    """

    setting: str = ""
    gpu: bool = False
    flags: tuple[str, ...] = ()
    called: str = ""
    memory_gib: float = 0.0
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A benchmark program.

    Attributes:
        name: As written in a recipe.
        module: What `python3 -m` runs.
        requirements: File below `requirements` with the pinned packages of its environment.
        summary: One sentence for people.
        parameters: Its own options without the dashes, with what each means; those of several values take a
            list. Options that every benchmark has are COMMON and, where `rounds` is set, ROUNDS.
        lists: Which of the parameters take several values.
        files: Which of them are paths of the user's own.
        selecting: Those of the lists that only say which cases there are: a case is the same whatever else
            stands in the list, so that `--resume` need not repeat it.
        rounds: Whether settings run in slices of time.
        needs: What a machine must have; `dlcloud bench` leaves out what does not fit.
        sweep: The parameters that `dlcloud bench` runs it with; None where it cannot run it by itself.
        tiny: What of these it runs with `--tiny`: the real engines, in seconds.
        choices: Values of parameters that need other packages; the first that is asked for counts.
    """

    name: str
    module: str
    requirements: str
    summary: str
    parameters: dict[str, str]
    lists: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    selecting: tuple[str, ...] = ()
    rounds: bool = True
    needs: tuple[Need, ...] = ()
    sweep: Parameters | None = None
    tiny: Parameters = field(default_factory=dict)
    choices: tuple[Choice, ...] = ()

    @property
    def requirements_path(self) -> Path:
        """Return where the requirements file lies that suits its defaults."""
        return _requirements(self.requirements)

    def requirements_for(self, arguments: Sequence[str]) -> Path:
        """Return where the requirements file lies that suits its command-line arguments."""
        # Shortened options and `--option=value` must mean here what they mean to the program.
        parser = argparse.ArgumentParser(add_help=False)
        for parameter in (*self.parameters, *COMMON, *ROUNDS):
            parser.add_argument(f"--{parameter}", dest=parameter, nargs="*", default=[])
        asked, _ = parser.parse_known_args(arguments)
        chosen = (choice for choice in self.choices if choice.made(getattr(asked, choice.parameter)))
        return next((_requirements(choice.requirements) for choice in chosen), self.requirements_path)


def _requirements(name: str) -> Path:
    return Path(__file__).resolve().parent / "requirements" / name


COMMON = {
    "width": "relative width of the speed-up's 95 % interval at which sampling stops",
    "max-seconds": "seconds of measuring a case after which no further round begins",
    "pin": "cores keeps everything to one hyper-thread of each physical core",
    "seed": "of every random choice",
}

ROUNDS = {
    "rounds": "rounds measured at least",
    "slice-seconds": "least time of a setting in a round",
    "warm-up-seconds": "when a warm-up that does not end by itself is cut off",
}

BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            name="quantization",
            module="benchmarks.quantization",
            requirements="quantization.txt",
            summary="Compare fp32 with int8 inference of image networks on OpenVINO, ONNX Runtime and "
            "PyTorch: speed, latency, size, memory, and accuracy or agreement.",
            parameters={
                "network": "vgg16, vgg19, resnet50, ssd300 or tiny with random weights, or digits: a small "
                "VGG trained on real ones, judged by its accuracy",
                "model": "file of a model of your own, of one input: .onnx, .pt2, .keras, or a SavedModel's "
                "folder",
                "input-shape": "of the model's input without the batch, where the model leaves it open",
                "data": "what the model is calibrated and judged by: .npz with inputs and perhaps labels, "
                ".npy, or a folder of .npy",
                "engine": "openvino (default), onnxruntime, pytorch or bigdl (on Spark; takes Java and "
                "Python 3.11), or several in turn",
                "device": "cpu (default) or cuda, which of these only pytorch uses",
                "precision": "what is measured beside each engine's fp32: bf16, int8, ...; all unless given",
                "batch": "images a step",
                "threads": "threads of the engine; one per physical core unless given",
                "isa": "newest instructions an engine may use: native (default), avx512_core (Skylake's, "
                "without VNNI, as on a c5) or avx2",
                "calibration-images": "synthetic images that the int8 scales are taken from",
                "cache": "folder where built models are kept",
            },
            lists=("network", "engine", "precision", "batch", "isa"),
            files=("model", "data"),
            selecting=("network", "precision", "batch", "isa"),
            needs=(
                Need(memory_gib=4),
                Need(setting="bf16", flags=("avx512_bf16", "amx_bf16"), called="AVX512_BF16 or AMX"),
                Need(
                    setting="int8",
                    flags=("avx512_vnni", "avx_vnni", "amx_int8"),
                    called="VNNI",
                    advice="int8 gains about half as much there",
                ),
            ),
            sweep={"network": ["vgg16", "resnet50"], "engine": "openvino", "batch": ["1", "8"]},
            tiny={
                "network": "tiny",
                "engine": "onnxruntime",
                "batch": "1",
                "max-seconds": "2",
                "slice-seconds": "0.05",
                "warm-up-seconds": "1",
            },
            choices=(
                Choice(parameter="engine", value="pytorch", requirements="quantization_pytorch.txt"),
                Choice(parameter="model", value="*.pt2", requirements="quantization_pytorch.txt"),
                Choice(parameter="model", value="*.keras", requirements="quantization_pytorch.txt"),
                Choice(parameter="network", value="digits", requirements="quantization.txt"),
                Choice(
                    parameter="engine",
                    value="onnxruntime",
                    alone=True,
                    requirements="quantization_onnxruntime.txt",
                ),
                # BigDL itself lies in an environment of its own; this one builds what it is given.
                Choice(
                    parameter="engine",
                    value="bigdl",
                    alone=True,
                    requirements="quantization_onnxruntime.txt",
                ),
            ),
        ),
        Benchmark(
            name="mixed_precision",
            module="benchmarks.mixed_precision",
            requirements="mixed_precision.txt",
            summary="Compare FP32 with mixed-precision training of image networks in PyTorch or Keras: time "
            "of a step and of an epoch, memory, kernels proven, and whether the loss falls alike.",
            parameters={
                "network": "vgg16, mobilenet, resnet50, efficientnet-b0 to -b5 or tiny with random weights, "
                "or digits: a small network trained to the end on real ones",
                "engine": "pytorch (default) or keras, on PyTorch",
                "setting": "fp32, tf32, bf16 or fp16 with +knobs, such as bf16+channels_last+compile",
                "batch": "images a step",
                "size": "height and width of the images; as published for each network unless given",
                "head": "published (default), or small as in the article",
                "optimizer": "sgd (default) or adam",
                "device": "auto (default: the first GPU, if there is one), cpu or cuda",
                "threads": "threads of the engine; one per physical core unless given",
                "epoch-images": "images of an epoch, whose time is computed; ImageNet's unless given",
                "epochs": "epochs that digits is trained for",
            },
            lists=("network", "engine", "setting", "batch"),
            selecting=("network", "engine", "batch"),
            needs=(
                Need(memory_gib=8),
                Need(
                    setting="bf16",
                    flags=("avx512_bf16", "amx_bf16"),
                    called="AVX512_BF16 or AMX",
                ),
            ),
            sweep={
                "network": ["vgg16", "mobilenet", "resnet50", "efficientnet-b0", "digits"],
                "batch": "8",
            },
            tiny={
                "network": "tiny",
                "setting": ["fp32", "bf16"],
                "batch": "2",
                "max-seconds": "2",
                "slice-seconds": "0.05",
                "warm-up-seconds": "1",
            },
        ),
        Benchmark(
            name="tensorflow",
            module="benchmarks.tensorflow_cpu",
            requirements="tensorflow.txt",
            summary="Compare settings of training with TensorFlow: stock, an article's of 2018, and today's "
            "best, found by a search that says what each knob earns.",
            parameters={
                "network": "alexnet, googlenet, inception3, resnet50, resnet152, vgg16 or tiny; random "
                "weights",
                "batch": "images a step",
                "settings": "stock (the baseline), article, today; all unless given",
                "optimizer": "sgd (default), momentum or rmsprop",
                "device": "cpu (default) or gpu",
                "knobs": "what the search may turn: onednn, precision, allocator, cpus, intra, inter, "
                "layout, xla, host-threads; all unless given",
                "search-batch": "search at this batch only and use what was found at every one",
                "search-rounds": "rounds of each case of the search at least",
                "search-total-seconds": "seconds after which the search turns no further knob",
                "search-seconds": "seconds after which a case of the search begins no further round",
            },
            lists=("network", "batch", "settings", "knobs"),
            selecting=("network", "batch"),
            needs=(
                Need(memory_gib=8),
                Need(
                    flags=("avx512_bf16", "amx_bf16"),
                    called="AVX512_BF16 or AMX",
                    advice="the search leaves bf16 out there, its largest gain",
                ),
            ),
            sweep={"network": ["resnet50", "vgg16"], "batch": "32"},
            tiny={
                "network": "tiny",
                "batch": "8",
                "knobs": ["onednn", "precision"],
                "max-seconds": "2",
                "slice-seconds": "0.05",
                "warm-up-seconds": "1",
                "search-seconds": "1",
            },
            choices=(Choice(parameter="device", value="gpu", requirements="tensorflow_gpu.txt"),),
        ),
        Benchmark(
            name="command",
            module="benchmarks.command",
            requirements="command.txt",
            summary="Compare settings (environment, arguments) of any command by the throughput it prints, "
            "or by its wall time.",
            parameters={
                "run": "the shell command",
                "settings": "JSON: a list of {name, environment, arguments}, the baseline first",
                "throughput": "regular expression whose one group is a throughput in the command's output",
                "json-field": "field of JSON lines in the output that holds the throughput",
                "reported": "the command reports its throughputs by calling dlcloud_report",
                "final": "take only the last value of a run",
                "unit": "what the throughput counts",
                "repeats": "runs of each setting at least",
                "warm-up-runs": "runs of each setting that do not count",
            },
            rounds=False,
        ),
    )
}
