"""The facts of fidelity and the pages made from them."""

from __future__ import annotations

import ast
from pathlib import Path

from kernbench.components import builtin
from kernbench.report.fidelity import KINDS, as_json, as_markdown, as_text
from kernbench.report.fidelity_facts import FACTS
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.testing import tiny_machine

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_in_the_docs_is_the_generated_one():
    # Hint with: kernbench fidelity --markdown > docs/fidelity.md
    assert (DOCS / "fidelity.md").read_text(encoding="utf-8") == as_markdown()


def test_every_topic_stands_once_and_says_everything():
    topics = [fact.topic for fact in FACTS]
    assert len(dict.fromkeys(topics)) == len(topics)
    for fact in FACTS:
        assert all((fact.topic, fact.hardware, fact.model, fact.matters)), fact


def test_what_is_exact_has_no_error_and_everything_else_has_a_direction():
    for fact in FACTS:
        assert (fact.kind == "exact") == (fact.error == "none"), fact


def test_every_kind_is_reported():
    assert [kind for kind in KINDS if any(fact.kind == kind for fact in FACTS)] == list(KINDS)


def test_what_the_record_calls_out_of_scope_is_reported():
    topics = " ".join(fact.topic for fact in FACTS if fact.kind == "ignored")
    for word in ("buffers", "bank", "refresh", "clock"):
        assert word in topics


def test_what_blocks_say_they_leave_out_is_reported():
    """A block of a PE that says "Not modelled" has its facts: named here by a word of its docstring and a topic."""
    stated = {
        "pe_mmu": ("misses", "address translation"),
        "pe_dma": ("tile's narrow rows", "rows of a tile"),
        "pe_tcm": ("contention for a port", "TCM ports and the DMA"),
        "pe_gemm": ("fill and drain", "MAC array"),
        "pe_math": ("different functions", "vector functions"),
        "pe_fetch_store": ("register banks", "register file"),
        "pe_scheduler": ("a limit on commands", "queues inside a PE"),
        "pe_ipcq": ("contention for TCM ports", "messages between PEs"),
        "pe_cpu": ("scalar code", "scalar code and instruction fetch"),
    }
    topics = [fact.topic for fact in FACTS]
    for path in sorted(Path(builtin.__file__).parent.glob("pe_*.py")):
        docstring = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split())
        assert ("Not modelled" in docstring) == (path.stem in stated), path.stem
        if path.stem in stated:
            word, topic = stated[path.stem]
            assert word in docstring.partition("Not modelled")[2], path.stem
            assert topic in topics


def test_text_fits_a_terminal_and_names_every_topic():
    lines = as_text().splitlines()
    assert max(map(len, lines)) <= 100
    for fact in FACTS:
        assert any(line.startswith(f"  {fact.topic}") for line in lines)


def test_json_carries_the_facts():
    data = as_json()
    assert (data["schema"], data["command"], len(data["facts"])) == (1, "fidelity", len(FACTS))
    assert list(data["facts"][0]) == ["topic", "hardware", "model", "kind", "error", "matters"]


def test_what_infinite_queues_do_to_a_sender_is_what_the_page_says():
    """256 KiB leave the first link, of 256 GB/s, in 1,024 ns; the link between the cubes' connections needs 2,048."""
    kib = 1024

    def kernel(tl):
        if tl.program_id(1) == 0:
            tl.send("cube_1", tl.zeros((256 * kib,), "i8"))
        else:
            tl.recv("cube_0", (256 * kib,), "i8")

    with RuntimeContext(GraphEngine(tiny_machine(cubes=2))) as torch:
        torch.install_ipcq(n_slots=64, slot_size=4 * kib)
        sender, receiver = torch.launch(kernel, target_cubes=(0, 1), target_pes=(0,)).pes
    assert sender.pe_exec_ns == 256 * kib / 256 == 1024
    assert receiver.pe_exec_ns > 256 * kib / 128 == 2048
    fact = next(fact for fact in FACTS if fact.topic == "finite buffers")
    assert fact.error == "optimistic"
    assert "returns after 1,024 ns" in fact.matters
    assert "needs 2,048" in fact.matters
    assert "single-digit" not in fact.matters
