"""ccl.yaml: what holds where nothing is said, what a user's file changes, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.ccl.config import choose, load_ccl_config, resolve_algorithm_config
from kernbench.ccl.modules import load_algorithm
from kernbench.common.errors import CclConfigError, UsageError
from kernbench.common.ipcq import RingConfig


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KERNBENCH_CCL", raising=False)


def test_the_shipped_configuration_has_the_rings_of_the_design_and_an_algorithm_for_every_collective() -> None:
    cfg = load_ccl_config()
    small = resolve_algorithm_config(cfg)
    assert small.rings == RingConfig(
        n_slots=4, slot_size=4096, buffer_kind="tcm", backpressure="sleep", credit_bytes=16
    )
    for collective in cfg.collectives:
        for nbytes in (0, 1 << 10, 1 << 20):
            algorithm = load_algorithm(choose(cfg, collective, nbytes))  # type: ignore[arg-type]  # a name of the configuration
            assert collective in algorithm.collectives
    for name in cfg.algorithms:
        load_algorithm(resolve_algorithm_config(cfg, name))


def test_a_file_in_the_current_directory_changes_what_it_names_and_keeps_the_rest() -> None:
    Path("ccl.yaml").write_text("defaults:\n  algorithm: tree\n  n_slots: 8\n")
    found = resolve_algorithm_config(load_ccl_config())
    assert found["algorithm"] == "tree"
    assert (found.algorithm, found.n_slots, found.slot_size) == ("tree", 8, 4096)


def test_a_named_file_goes_before_the_environment_and_that_before_the_current_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, slots in (("ccl.yaml", 5), ("env.yaml", 6), ("named.yaml", 7)):
        Path(name).write_text(f"defaults: {{ n_slots: {slots} }}\n")
    assert load_ccl_config().settings["n_slots"] == 5
    monkeypatch.setenv("KERNBENCH_CCL", "env.yaml")
    assert load_ccl_config().settings["n_slots"] == 6
    assert load_ccl_config("named.yaml").settings["n_slots"] == 7


def test_a_mapping_lies_on_what_else_holds() -> None:
    Path("ccl.yaml").write_text("defaults: { n_slots: 5, slot_size: 512 }\n")
    settings = load_ccl_config({"defaults": {"n_slots": 9}}).settings
    assert (settings["n_slots"], settings["slot_size"]) == (9, 512)


def test_all_faults_of_a_file_are_reported_together_with_line_and_key() -> None:
    Path("ccl.yaml").write_text(
        "defaults:\n"
        "  buffr_kind: tcm\n"
        "  n_slots: 0\n"
        "collectives:\n"
        "  gather: rng\n"
        "algorithms:\n"
        "  mine: { modul: x }\n"
        "auto:\n"
        "  all_reduce:\n"
        "    - { algorithm: tree }\n"
        "    - { up_to_bytes: 5, algorithm: tree }\n"
    )
    with pytest.raises(CclConfigError) as caught:
        load_ccl_config()
    assert [(fault.where, fault.key) for fault in caught.value.faults] == [
        ("ccl.yaml:2", "defaults.buffr_kind"),
        ("ccl.yaml:7", "algorithms.mine.modul"),
        ("ccl.yaml:7", "algorithms.mine"),
        ("ccl.yaml:5", "collectives.gather"),
        ("ccl.yaml:3", "defaults.n_slots"),
        ("ccl.yaml:11", "auto.all_reduce[1].up_to_bytes"),
        ("ccl.yaml:11", "auto.all_reduce[1]"),
    ]
    assert str(caught.value).startswith("7 faults in the configuration of collectives")
    assert "did you mean 'buffer_kind'?" in caught.value.faults[0].what


def test_the_algorithm_of_all_reduce_has_one_place() -> None:
    with pytest.raises(CclConfigError, match="unknown key 'all_reduce'") as caught:
        load_ccl_config({"collectives": {"all_reduce": "tree"}})
    assert "defaults.algorithm" in (caught.value.hint or "")


@pytest.mark.parametrize("key", ["ring_bytes", "work_bytes"])
def test_what_a_process_group_reserves_is_no_setting_of_one_algorithm(key: str) -> None:
    with pytest.raises(CclConfigError, match=f"unknown key '{key}'") as caught:
        load_ccl_config({"algorithms": {"tree": {key: 1 << 20}}})
    assert f"defaults.{key}" in (caught.value.hint or "")


def test_credits_need_room_beside_two_rings() -> None:
    # two rings of 4 x 4096 bytes, and two words of 16: 32800 bytes
    with pytest.raises(CclConfigError, match="and their credits, do not fit ring_bytes, 32768"):
        load_ccl_config({"defaults": {"ring_bytes": 32768}})
    load_ccl_config({"defaults": {"ring_bytes": 32768 + 256}})


def test_large_rings_of_the_package_are_those_of_the_defaults_where_they_do_not_fit() -> None:
    # two rings of 2 x 16384 bytes are 65536
    for ring_bytes, rings in ((65536 + 256, (2, 16384)), (65536, (4, 4096))):
        found = choose(load_ccl_config({"defaults": {"ring_bytes": ring_bytes}}), "all_reduce", 1 << 26)
        assert (found.algorithm, found.n_slots, found.slot_size) == ("long_messages_all_pes", *rings)
    with pytest.raises(UsageError, match="two rings of 'long_messages_all_pes', 2 slots of 16384 bytes each, do not"):
        choose(load_ccl_config({"defaults": {"ring_bytes": 65536}}), "all_reduce", 8, algorithm="long_messages_all_pes")


def test_rings_that_do_not_fit_their_tcm_are_a_fault() -> None:
    # two rings of 64 x 4096 = 512 KiB are more than the 256 KiB that are kept
    with pytest.raises(CclConfigError, match="do not fit ring_bytes"):
        load_ccl_config({"defaults": {"n_slots": 64}})
    load_ccl_config({"defaults": {"n_slots": 64, "buffer_kind": "hbm"}})


@pytest.mark.parametrize(("nbytes", "name"), [(0, "tree"), (100, "tree"), (101, "chain"), (1 << 40, "chain")])
def test_auto_takes_the_first_row_that_is_large_enough(nbytes: int, name: str) -> None:
    rows = [{"up_to_bytes": 100, "algorithm": "tree", "chunk_bytes": 512}, {"algorithm": "chain"}]
    cfg = load_ccl_config({"auto": {"broadcast": rows}})
    found = choose(cfg, "broadcast", nbytes)
    assert (found.algorithm, found.chunk_bytes) == (name, 512 if name == "tree" else 16384)


@pytest.mark.parametrize(
    ("ranks", "nbytes", "name"),
    [(2, 100, "tree"), (2, 101, "chain"), (4, 100, "tree"), (5, 100, "direct"), (5, 101, "chain")],
)
def test_rows_may_have_limits_of_ranks_and_of_bytes(ranks: int, nbytes: int, name: str) -> None:
    rows = [
        {"up_to_ranks": 4, "up_to_bytes": 100, "algorithm": "tree"},
        {"up_to_bytes": 100, "algorithm": "direct"},
        {"algorithm": "chain"},
    ]
    assert choose(load_ccl_config({"auto": {"broadcast": rows}}), "broadcast", nbytes, ranks=ranks).algorithm == name


@pytest.mark.parametrize(
    ("rows", "key"),
    [
        ([{"algorithm": "tree"}, {"up_to_ranks": 4, "algorithm": "tree"}, {"algorithm": "tree"}], "[1].up_to_ranks"),
        ([{"up_to_ranks": 4, "algorithm": "tree"}, {"up_to_ranks": 3, "algorithm": "tree"}], "[1].up_to_ranks"),
        ([{"up_to_ranks": 4, "algorithm": "tree"}], "[0]"),
        ([{"up_to_bytes": 9, "algorithm": "tree"}, {"up_to_bytes": 9, "algorithm": "tree"}], "[1].up_to_bytes"),
    ],
)
def test_rows_that_are_never_used_or_leave_calls_without_one_are_faults(
    rows: list[dict[str, object]], key: str
) -> None:
    with pytest.raises(CclConfigError) as caught:
        load_ccl_config({"auto": {"broadcast": rows}})
    assert caught.value.faults[0].key == f"auto.broadcast{key}"


def test_the_table_of_auto_can_lie_in_a_file_of_its_own_beside_the_one_that_names_it() -> None:
    Path("sub").mkdir()
    Path("sub/tuned.yaml").write_text("auto:\n  all_reduce:\n    - { algorithm: ring_allreduce }\n")
    Path("sub/mine.yaml").write_text("auto: tuned.yaml\n")
    assert choose(load_ccl_config("sub/mine.yaml"), "all_reduce", 8).algorithm == "ring_allreduce"
    assert choose(load_ccl_config("sub/tuned.yaml"), "all_reduce", 8).algorithm == "ring_allreduce"


def test_an_algorithm_may_be_a_file_with_settings_and_params_of_its_own() -> None:
    Path("sub").mkdir()
    Path("sub/mine.py").write_text(
        "def kernel_args(world_size, n_elem, *, cube_w=4, cube_h=4):\n    return ()\n"
        "def kernel(t_ptr, rank, kind, w, h, *, fan_out=2, tl):\n    pass\n"
    )
    entry = {"module": "mine.py", "n_slots": 2, "params": {"fan_out": 3}}
    Path("sub/ccl.yaml").write_text("algorithms:\n  mine: { module: mine.py, n_slots: 2, params: { fan_out: 3 } }\n")
    found = resolve_algorithm_config(load_ccl_config("sub/ccl.yaml"), "mine")
    assert (found.n_slots, found.params) == (2, {"fan_out": 3})
    assert load_algorithm(found).collectives == ("all_reduce",)
    wrong = load_ccl_config({"algorithms": {"mine": {**entry, "module": "sub/mine.py", "params": {"fan": 3}}}})
    with pytest.raises(UsageError, match="no parameter 'fan'"):
        load_algorithm(resolve_algorithm_config(wrong, "mine"))


@pytest.mark.parametrize(
    ("module", "what"),
    [
        ("nowhere.at_all", "cannot be loaded: ModuleNotFoundError"),
        ("nowhere.py", "there is no file"),
        ("json", "has no function 'kernel'"),
    ],
)
def test_a_module_that_is_no_algorithm_is_refused_at_the_line_of_its_entry(module: str, what: str) -> None:
    Path("ccl.yaml").write_text(f"algorithms:\n  mine:\n    module: {module}\n")
    config = resolve_algorithm_config(load_ccl_config(), "mine")
    with pytest.raises(UsageError, match=what) as caught:
        load_algorithm(config)
    assert caught.value.where == "ccl.yaml:3  algorithms.mine.module"


@pytest.mark.parametrize("text", ["", "[1, 2]", "defaults: 3", "auto: none.yaml", "\tx", "algorithms: { auto: {} }"])
def test_files_that_are_no_configuration_are_refused(text: str) -> None:
    Path("ccl.yaml").write_text(text)
    with pytest.raises(CclConfigError):
        load_ccl_config()


def test_an_unknown_algorithm_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="did you mean 'ring_allreduce'"):
        resolve_algorithm_config(load_ccl_config(), "ring_alreduce")


def test_the_guide_lists_every_algorithm_and_every_key() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "write-a-collective.md").read_text()
    cfg = load_ccl_config()
    missing = [name for name in cfg.algorithms if f"| `{name}` |" not in guide]
    missing += [key for key in ("algorithm", *cfg.settings) if f"`defaults.{key}`" not in guide]
    assert missing == []
