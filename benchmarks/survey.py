"""Every architecture of `transformers`, made small: is it captured whole, are its results and gradients right?

Each family is made from its own configuration class with small numbers and random weights, nothing is downloaded. One
process each runs it in inference (two sets of sizes; without gradients, and in inference mode) and a training step,
compiled, and compares with eager and float64 (`closeness.py`); a call made again must capture nothing. Families that
such a configuration can't make, or that eager refuses, are left out and counted.

    python benchmarks/survey.py --rows rows.jsonl            # all of them; goes on where an earlier run ended
    python benchmarks/survey.py --rows rows.jsonl llama t5   # these
    python benchmarks/survey.py --rows rows.jsonl --backend eager --processes 8   # what is captured, quickly
    python benchmarks/survey.py --rows rows.jsonl --save     # the table of what was measured: results/survey.md

One more number to make small: a line in `_SMALL`. One more kind of input: a case in `_inputs`.
"""

import argparse
import copy
import dataclasses
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import closeness
import numpy
import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import dynajit  # noqa: E402
from dynajit.report import records  # noqa: E402
from dynajit.report.explain import ExplainReport  # noqa: E402

TABLE = Path(__file__).parent / "results" / "survey.md"
VOCABULARY = 160
# Names that configuration classes share -> the number.
_SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "embed_dim"), 64),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers", "depth"), 2),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "num_local_experts", "num_experts"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "num_experts_per_tok", "type_vocab_size"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions"), 128),
    **dict.fromkeys(("head_dim", "d_kv", "sliding_window", "num_mel_bins", "num_conv_pos_embeddings"), 16),
    **dict.fromkeys(("state_size", "mamba_d_state", "chunk_size", "patch_size", "num_queries"), 8),
    **dict.fromkeys(("classifier_proj_size", "projection_dim", "image_size", "codevector_dim"), 32),
    **dict.fromkeys(("n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("bos_token_id", "decoder_start_token_id", "n_group", "topk_group"), 1),
    **dict.fromkeys(("eos_token_id", "num_conv_pos_embedding_groups"), 2),
    "vocab_size": VOCABULARY,
    "num_labels": 5,
    "pad_token_id": 0,
}
_OTHER_TOKENS = ("sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id")
# Tables of the library, best known task first -> what such a model is called with.
_TASKS = {
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "text",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": "pair",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": "text",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES": "image",
    "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES": "image",
    "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES": "image",
    "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES": "sound",
}
SIZES = ((2, 24), (3, 17))  # rows and length


@dataclasses.dataclass
class Row:
    """What one family gave. `breaks` are those of its first calls: kind, reason and line; `again` is what repeated
    calls captured."""

    family: str
    inference: int = 0
    training: int = 0
    breaks: list[str] = dataclasses.field(default_factory=list)
    wrong: str = ""
    seconds: float = 0.0
    left_out: str = ""
    again: list[str] = dataclasses.field(default_factory=list)


def families() -> dict[str, tuple[str, str]]:
    """Model type -> class and kind of input."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    found: dict[str, tuple[str, str]] = {}
    for table, kind in _TASKS.items():
        for family, classes in getattr(modeling_auto, table, {}).items():
            if family in CONFIG_MAPPING:
                found.setdefault(family, (classes if isinstance(classes, str) else classes[0], kind))
    return found


def make(family: str, class_name: str) -> nn.Module:
    """The family's model with small numbers."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.manual_seed(0)
    kind = CONFIG_MAPPING[family]
    model: nn.Module = getattr(transformers, class_name)(kind(**_small(kind)))
    closeness.without_dropout(model)
    return model


def _small(kind: Any) -> dict[str, Any]:
    parts = getattr(kind, "sub_configs", None) or {}
    chosen: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        if name in parts:
            chosen[name] = _small(parts[name])
        elif isinstance(parameter.default, float) and "drop" in name:
            chosen[name] = 0.0
        elif isinstance(parameter.default, (list, tuple, bool)):
            continue
        elif name in _SMALL:
            chosen[name] = _SMALL[name]
        elif name in _OTHER_TOKENS:
            chosen[name] = 3
    return chosen


def _inputs(model: Any, kind: str, rows: int, length: int) -> dict[str, Tensor]:
    def tokens(count: int) -> Tensor:
        return torch.randint(5, VOCABULARY, (rows, count))

    if kind == "image":
        size = getattr(model.config, "image_size", None)
        size = size if isinstance(size, int) else 32
        return {"pixel_values": torch.randn(rows, 3, size, size)}
    if kind == "sound":
        return {"input_values": torch.randn(rows, 320 * length)}
    if kind == "pair":
        return {"input_ids": tokens(length), "decoder_input_ids": tokens(length // 2), "labels": tokens(length // 2)}
    ids = tokens(length)
    return {"input_ids": ids, "labels": ids}


def measure(family: str, class_name: str, kind: str, backend: str) -> Row:
    row = Row(family)
    try:
        model = make(family, class_name)
        sets = [_inputs(model, kind, *sizes) for sizes in SIZES]
        wanted = [_both(model, one) for one in sets]
        exact = _in_double(model, sets) or wanted
    except Exception as error:  # the configuration does not fit the family
        row.left_out = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return row
    for mode, way in _MODES.items():
        train = way is _gradients
        ours = copy.deepcopy(model)
        compiled = dynajit.compile(ours, backend=backend)
        for call in range(3 * len(sets)):
            number = call % len(sets)
            found: list[records.CompileRecord] = []
            try:
                with records.listen(found.append):
                    got = way(compiled, ours, sets[number])
                why = closeness.whats_wrong(got, wanted[number][train], exact[number][train])
            except Exception as error:  # any error is a finding
                why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            row.wrong = row.wrong or (why or "")
            if call < len(sets) and way is not _in_inference_mode:
                _note(row, found, train, number)
            elif call >= 2 * len(sets):
                row.again += [f"{mode}: {record.code_name}: {record.recompile_reason}" for record in found]
    return row


def _in_double(model: nn.Module, sets: list[dict[str, Tensor]]) -> list[Any] | None:
    """What float64 gives; None for a family with operators that lack it."""
    double = copy.deepcopy(model).double()
    try:
        return [_both(double, closeness.in_double(one)) for one in sets]
    except RuntimeError:
        return None


def _note(row: Row, found: list[records.CompileRecord], train: bool, number: int) -> None:
    report = ExplainReport(found)
    row.seconds += sum(report.phases.values())
    for brk in report.break_reasons:
        place = brk.user_stack[-1].short().rsplit("/", 1)[-1] if brk.user_stack else ""
        text = f"{brk.kind} ({place})"
        row.breaks += [] if text in row.breaks else [text]
    if number == 0 and train:
        row.training = report.graph_count
    elif number == 0:
        row.inference = report.graph_count


def _both(model: nn.Module, one: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return _results(model, model, one), _gradients(model, model, one)


def _results(fn: Any, model: nn.Module, one: dict[str, Tensor]) -> dict[str, Tensor]:
    model.eval()
    with torch.no_grad():
        return {f"result {i}": each for i, each in enumerate(closeness.tensors(_call(fn, one)))}


def _in_inference_mode(fn: Any, model: nn.Module, one: dict[str, Tensor]) -> dict[str, Tensor]:
    model.eval()
    with torch.inference_mode():
        return {f"result {i}": each.clone() for i, each in enumerate(closeness.tensors(_call(fn, one)))}


def _gradients(fn: Any, model: nn.Module, one: dict[str, Tensor]) -> dict[str, Tensor]:
    model.train()
    model.zero_grad()
    out = _call(fn, one)
    loss = getattr(out, "loss", None)
    if loss is None:
        loss = sum(each.pow(2).mean() for each in closeness.tensors(out) if each.requires_grad)
    loss.backward()
    named = {f"grad {name}": each.grad for name, each in model.named_parameters() if each.grad is not None}
    return {"loss": loss.detach(), **named}


_MODES = {"no_grad": _results, "inference_mode": _in_inference_mode, "training": _gradients}


def _call(fn: Any, one: dict[str, Tensor]) -> Any:
    torch.manual_seed(1)  # what a family draws besides dropout, some with NumPy
    numpy.random.seed(1)
    return fn(**one)


# ------------------------------------------------------------------------------------------------------------ the run


def run(family: str, limit: float, backend: str) -> Row:
    """The family's row, measured in a process of its own."""
    begun = time.monotonic()
    command = [sys.executable, __file__, "--one", family, "--backend", backend]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return Row(family, left_out=f"not done after {limit:.0f} s")
    line = next((line for line in done.stdout.splitlines() if line.startswith('{"family"')), None)
    if line is None:
        return Row(family, wrong=f"exit status {done.returncode} after {time.monotonic() - begun:.0f} s")
    return Row(**json.loads(line))


def _read(path: Path) -> list[Row]:
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def _lines(rows: list[Row]) -> Iterator[str]:
    measured = [row for row in rows if not row.left_out]
    yield "# Families of models"
    yield ""
    yield f"torch {torch.__version__}. Made by `python benchmarks/survey.py --rows FILE --save`."
    yield ""
    wrong, broken = sum(bool(row.wrong) for row in measured), sum(bool(row.breaks) for row in measured)
    again = sum(bool(row.again) for row in measured)
    yield f"{len(measured)} families: {wrong} wrong, {broken} with graph breaks, {again} that compile in a third call."
    yield f"{len(rows) - len(measured)} more could not be made from small numbers, or took too long."
    yield ""
    yield "| family | graphs, inference | graphs, training | breaks | right | seconds of compiling, four times |"
    yield "|---|---:|---:|---|---|---:|"
    for row in sorted(measured, key=lambda row: row.family):
        breaks = "; ".join(row.breaks[:3]) + (" ..." if len(row.breaks) > 3 else "")
        right = row.wrong.replace("|", "/") or "yes"
        yield f"| {row.family} | {row.inference} | {row.training} | {breaks} | {right} | {row.seconds:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--rows", type=Path, help="a file of JSON lines that is gone on with")
    parser.add_argument("--limit", type=float, default=240, help="seconds for one family")
    parser.add_argument("--backend", default="codegen")
    parser.add_argument("--processes", type=int, default=1, help="how many families at a time")
    parser.add_argument("--save", action="store_true", help="write the table")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if given.one:
        print(json.dumps(dataclasses.asdict(measure(given.one, *families()[given.one], given.backend))))
        return
    if given.rows is None:
        parser.error("--rows FILE is needed")
    rows = _read(given.rows)
    if not given.save:
        known = {row.family for row in rows}
        left = [family for family in given.families or families() if family not in known]
        with ThreadPoolExecutor(given.processes) as pool:
            for done in as_completed(pool.submit(run, family, given.limit, given.backend) for family in left):
                row = done.result()
                with given.rows.open("a") as file:
                    print(json.dumps(dataclasses.asdict(row)), file=file)
                print(f"{row.family}: {row.left_out or row.wrong or 'right'}", *row.breaks, *row.again, flush=True)
    else:
        TABLE.write_text("\n".join(_lines(rows)) + "\n")


if __name__ == "__main__":
    main()
