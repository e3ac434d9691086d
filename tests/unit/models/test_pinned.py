"""A file that pins a choice is taken again, and refused where it says what cannot be run: with line, key and limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.models.test_layer import llm_layer, machine, names, run
from tests.unit.models.test_mapper import DIE, GPU, LLAMA_8B, choice_of, model_of, products

from kernbench.common.errors import CapacityError, UsageError
from kernbench.models.choice_report import CAUSES, report_rows
from kernbench.models.fused_plan import NotFused
from kernbench.models.mapper import LayerSize, MappedLayer
from kernbench.models.mapping import choose_mapping
from kernbench.models.pinned import PinnedWork, pinned_layer, write_choice
from kernbench.models.pinned_file import PinnedFile

WORK = PinnedWork("llama3-8b", "prefill", 1, 2048, 0, 1, 2)
TINY: dict[str, object] = {"model": "tiny-llama", "tokens": 64}
DECODE: dict[str, object] = {"model": "tiny-llama", "phase": "decode", "context": 64}
BLOCKS = "{kind: blocks, rows: 64, k: 256, n: 384, x_by: rows, groups: 1, row_parts: 2, block_rows: 32, "
BLOCKS += "block_columns: 96, block_k: 64, strips: 2, passes: 0, ahead: 1}"
FILE = f"""sip: {{mesh_w: 2, mesh_h: 1, pes: 2, tcm_bytes: 1011456}}
work: {{model: tiny-llama, phase: prefill, batch: 1, tokens: 64, context: 0, tp: 1, itemsize: 2}}
attention: online
products:
  qkv: {BLOCKS}
  out_proj: {{kind: columns, rows: 64, k: 256, n: 256, x_by: columns, groups: 1, k_parts: 2, block_rows: 64}}
  mlp_up: {{kind: columns, rows: 64, k: 256, n: 448, x_by: rows, groups: 2, k_parts: 1, block_rows: 0}}
  mlp_down: {{kind: split_k, rows: 64, k: 448, n: 256, x_by: columns}}
"""
IN_ROUNDS = FILE.replace("448, n: 256,", "448, n: 256, blocks: 3,")


def pinned(
    file: Path, size: LayerSize = LLAMA_8B, work: PinnedWork = WORK, tcm_bytes: int = 0, on: str = DIE
) -> MappedLayer:
    """The mapping of a file on a machine."""
    found, model = PinnedFile(str(file)), model_of(on)
    if tcm_bytes:
        model = replace(model, sip=replace(model.sip, tcm_bytes=tcm_bytes))
    found.check_work(asdict(work), size)
    base = choose_mapping(model.sip, 2048, 16 << 30, 1 << 40)
    return pinned_layer(found, model, size, NotFused("it is prefill"), base)


def test_a_report_names_one_choice_of_each_product_and_its_file_pins_it(tmp_path: Path) -> None:
    """An estimate is the sum of its causes; attention has a total only."""
    choice = choice_of(model_of(DIE), LLAMA_8B)
    rows = report_rows(choice)
    chosen = [row["choice of"] for row in rows if row["chosen"] == "yes"]
    assert chosen == ["qkv", "out_proj", "mlp_up", "mlp_down", "attention"]
    assert len(rows) > 10
    for row in rows:
        if row["choice of"] in chosen[:4]:
            assert row["estimate_us"] == pytest.approx(sum(float(str(row[f"{cause}_us"])) for cause in CAUSES))
            assert row["launches_us"] == 0.2
    assert [row["choice of"] for row in rows if row["kind"] == "one way"] == ["norms"]
    file = tmp_path / "choice.yaml"
    write_choice(str(file), choice, WORK)
    found = pinned(file)
    assert found.plans == choice.mapping.plans
    assert found.is_online == choice.mapping.is_online
    with pytest.raises(UsageError, match="is for model llama3-8b, tokens 2048, this run has model tiny, tokens 16"):
        pinned(file, work=replace(WORK, model="tiny", tokens=16))
    with pytest.raises(UsageError, match="rows of 'qkv' is 2048, in this run 64"):
        pinned(file, products(64, 4096, 6144))
    with pytest.raises(CapacityError, match="do not fit the 64 KiB of TCM that kernels have"):
        pinned(file, tcm_bytes=64 * 1024)


@pytest.mark.parametrize(("on", "rows"), [(DIE, 256), (DIE, 1024), (GPU, 512)])
def test_whatever_is_chosen_can_be_pinned(on: str, rows: int, tmp_path: Path) -> None:
    """Also rounds of chunks that are smaller than the block_k of a plan, in the last two."""
    size, work, file = products(rows, 4096, 14336), replace(WORK, tokens=rows), tmp_path / "choice.yaml"
    choice = choice_of(model_of(on), size)
    write_choice(str(file), choice, work)
    assert pinned(file, size, work, on=on).plans == choice.mapping.plans


@pytest.mark.parametrize(
    ("text", "message"), [("[]", "pins no products"), ("", "nothing in it"), (None, "cannot be read")]
)
def test_a_file_that_pins_nothing_is_refused(text: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "choice.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=message):
        PinnedFile(str(file))


@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
def test_a_pinned_layer_has_the_time_of_its_choice(tmp_path: Path) -> None:
    """Two ranks; the report's rows follow those of the parts."""
    file = str(tmp_path / "choice.yaml")
    params: dict[str, object] = {"model": "tiny-llama", "tokens": 16, "mapping_report": file}
    chosen = run(llm_layer, machine(2), device="whole", params=params)
    assert "choice of" in chosen.returned[0][-1]
    again = run(llm_layer, machine(2), device="whole", params={"model": "tiny-llama", "tokens": 16, "mapping": file})
    assert again.total_ns == chosen.total_ns
    assert names(again) == names(chosen)
    for other in ({"tokens": 32}, {"model": "tiny-gpt"}, {"tp": 1}):  # nothing in the file would be used
        given = {"model": "tiny-llama", "tokens": 16, "mapping": file, **other}
        with pytest.raises(UsageError, match=r"is for .*, this run has"):
            run(llm_layer, machine(2), device="whole", params=given)
    for mapping in ("columns", file):
        with pytest.raises(UsageError, match="there is no choice to report") as refused:
            run(llm_layer, machine(2), device="whole", params={**params, "mapping": mapping})
        assert "to see what auto chooses from" in str(refused.value.hint)


def refusal(text: str, file: Path, sips: int = 1, **params: Any) -> UsageError:
    """What a run with a file says, before a kernel runs."""
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        run(llm_layer, machine(sips), device="whole", params={**TINY, **params, "mapping": str(file)})
    return refused.value


@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
@pytest.mark.parametrize("text", [FILE, IN_ROUNDS])
def test_a_file_of_every_kind_of_plan_runs(text: str, tmp_path: Path) -> None:
    file = tmp_path / "choice.yaml"
    file.write_text(text)
    result = run(llm_layer, machine(1), device="whole", verify_data=True, params={**TINY, "mapping": str(file)})
    assert result.data
    assert all(check.ok for check in result.data)


@pytest.mark.parametrize(
    ("old", "new", "place", "what", "hint"),
    [
        ("online", "flash", "3  attention", "attention: 'flash' is not a choice", "online, stored"),
        ("  mlp_down", "# ", "4  products", "product 'mlp_down' is missing", "pin all of qkv"),
        ("qkv:", "qvk:", "5  products.qvk", "no product 'qvk' (did you mean 'qkv'?)", "use qkv, out_proj"),
        ("blocks", "splitk", "5  products.qkv.kind", "kind: 'splitk' is not a choice", "blocks, columns, split_k"),
        ("ahead: 1", "extra: 3", "5  products.qkv.extra", "unknown key 'extra'", "known keys here: kind"),
        ("strips:", "strps:", "5  products.qkv.strps", "(did you mean 'strips'?)", "known keys"),
        ("strips: 2", "strips: two", "5  products.qkv.strips", "strips: expected a whole number", "1 or more"),
        ("block_k: 64", "block_k: 64.5", "5  products.qkv.block_k", "expected a whole number, got 64.5", "1 or more"),
        ("block_k: 64", "block_k: 257", "5  products.qkv.block_k", "257 is out of range", "from 1 to 256"),
        ("columns: 96", "columns: 100000", "5  products.qkv.block_columns", "out of range", "from 1 to 384"),
        ("rows: 32", "rows: -32", "5  products.qkv.block_rows", "-32 is out of range", "1 or more"),
        ("groups: 1", "groups: 0", "5  products.qkv.groups", "0 is out of range", "1 or more"),
        ("groups: 1", "groups: 3", "5  products.qkv.groups", "3 does not divide the 2 cubes", "one of 1, 2"),
        ("row_parts: 2", "row_parts: 3", "5  products.qkv.row_parts", "does not divide the 4 PEs", "1, 2, 4"),
        ("passes: 0", "passes: 7", "5  products.qkv.passes", "7 is out of range", "from 0 to 1"),
        ("passes: 0", "passes: 1", "5  products.qkv.passes", "needs 2 rings of 4 slots", "set passes: 0"),
        ("n: 384", "n: 385", "5  products.qkv.n", "n of 'qkv' is 385, in this run 384", "write n: 384"),
        ("k_parts: 2", "k_parts: 3", "6  products.out_proj.k_parts", "does not divide the 2 PEs of a cube", "1, 2"),
        ("block_rows: 64", "block_rows: 65", "6  products.out_proj.block_rows", "out of range", "from 0 to 64"),
        ("448, n: 256,", "448, n: 256, blocks: 65,", "8  products.mlp_down.blocks", "out of range", "from 0 to 64"),
        ("448, n: 256,", "448, n: 256, groups: 1,", "8  products.mlp_down.groups", "unknown key", "blocks"),
        ("mesh_w: 2", "mesh_w: 4", "1  sip", "4 x 1 cubes of 2 PEs, this one has 2 x 1", "choose again"),
        ("11456", "11457", "1  sip.tcm_bytes", "of messages keep 524288 or 37120 or 151552", "write 524288"),
        ("tokens: 64", "tokns: 64", "2  work.tokns", "did you mean 'tokens'", "known keys"),
        ("attention:", "fused: 3\nattention:", "3  fused", "expected keys and values", "attention, piece_bytes"),
    ],
)
def test_each_fault_has_its_line_and_what_is_allowed(
    old: str, new: str, place: str, what: str, hint: str, tmp_path: Path
) -> None:
    assert old in FILE
    error = refusal(FILE.replace(old, new, 1), tmp_path / "choice.yaml")
    assert what in error.what
    assert error.where == f"{tmp_path / 'choice.yaml'}:{place}"
    assert hint in str(error.hint)


def test_collectives_of_several_sips_are_named_where_they_keep_tcm(tmp_path: Path) -> None:
    error = refusal(FILE, tmp_path / "choice.yaml", sips=2, tp=1)
    assert error.what.endswith("in this run they have 524288: rings and work of collectives of 2 SIPs keep 524288")
    assert "is for tp 1, this run has tp 2" in refusal(FILE, tmp_path / "choice.yaml", sips=2, tp=2).what


@pytest.mark.needs("addresses", reason="parallel layers read blocks that span parts of a tensor")
def test_a_plan_in_one_launch_is_checked_too(tmp_path: Path) -> None:
    """TCM of a kernel: 1 MiB less 151,552 bytes for messages, 897,024."""
    file = tmp_path / "choice.yaml"
    run(llm_layer, machine(1), device="whole", params={**DECODE, "mapping_report": str(file)})
    good = file.read_text()
    edits: list[tuple[Callable[[str], str], str]] = [
        (lambda text: text.replace("room_bytes: ", "room_bytes: 9"), "and what else is in TCM do not fit its 876 KiB"),
        (lambda text: text.replace("room_bytes: ", "room_bytes: 1 #"), "is less than 8 pieces"),
        (lambda text: text.replace("piece_bytes: ", "piece_bytes: 1 #"), "1 is out of range"),
        (lambda text: text.replace("splits: ", "splits: 9"), "is out of range"),
        (
            lambda text: text.replace("context: 64\n    splits", "context: 65\n    splits"),
            "context is 65, in this run 64",
        ),
        (lambda text: text.replace("streamed: false", "streamed: true"), "streamed: true in one launch"),
        (lambda text: text.replace("slot_bytes: ", "slot_bytes: 3"), "is no power of two from 256 to "),
        (lambda text: text.replace("attention: stored", "attention: online"), "attention: online at decode"),
    ]
    for edit, what in edits:
        assert edit(good) != good
        assert what in refusal(edit(good), file, **{**DECODE, "tokens": 0}).what
    fused = "fused:" + good.split("fused:")[1]
    assert (
        "a layer in one launch: it is for phase=decode" in refusal(FILE.replace("1011456", "897024") + fused, file).what
    )
