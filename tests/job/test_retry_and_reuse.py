"""Rows that failed get another try; answers of unchanged rows need not be computed twice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from specbatch.errors import ExitCode, MismatchError, UsageError
from specbatch.rows import Prompt, RawPrompt

from .fake_engine import FILES, FakeEncoder, FakeEngine, World
from .jobs import Crash, crash_at, manifest, results, run, save_job


@dataclass
class Tolerant(FakeEncoder):
    """Speaks what the other one refuses."""

    def encode(self, raw: RawPrompt) -> Prompt:
        assert isinstance(raw.content, str)
        return super().encode(replace(raw, content=raw.content.replace("unspeakable", "spoken")))


def tolerant() -> World:
    return World(FakeEngine(encoder=Tolerant()))


PROMPTS = ["a", "unspeakable", "b", "unspeakable"]


def test_only_failed_rows_are_retried_and_the_latest_answer_wins(tmp_path: Path) -> None:
    config = save_job(tmp_path, {"prompt": PROMPTS})
    assert run(config).exit_code == ExitCode.ROW_FAILURES
    before = results(config)
    world = tolerant()
    assert run(config, world).ran is False, "without the flag, failed rows are finished rows"
    assert run(config, world, retry_failed=True).exit_code == ExitCode.OK
    assert world.engine.served == [1, 3]
    after = results(config)
    assert [row["status"] in ("ok", "truncated") for row in after] == [True] * 4
    assert [after[0]["text"], after[2]["text"]] == [before[0]["text"], before[2]["text"]]
    again = World()
    assert run(config, again, retry_failed=True).ran is False, "nothing failed any more"
    assert again.opened == 0


def test_a_retry_that_is_killed_goes_on(tmp_path: Path) -> None:
    config = save_job(tmp_path, {"prompt": PROMPTS}, flush_rows=1)
    run(config)
    broken = crash_at(3)
    broken.engine.encoder = Tolerant()
    with pytest.raises(Crash):
        run(config, broken, retry_failed=True)
    world = tolerant()
    assert run(config, world, retry_failed=True).exit_code == ExitCode.OK
    assert world.engine.served == [3]


def test_retry_and_fresh_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contradict"):
        run(save_job(tmp_path, {"prompt": PROMPTS}), fresh=True, retry_failed=True)


def test_answers_of_unchanged_rows_are_reused_and_counted(tmp_path: Path) -> None:
    old = save_job(tmp_path / "old", {"prompt": ["a", "b", "a", "unspeakable"]}, token_ids=True)
    run(old)
    new = save_job(
        tmp_path / "new",
        {
            "prompt": ["new", "a", "unspeakable", "a", "b", "a"],
            "deadline_s": [None, 1e6, None, -1.0, 5.0, 6.0],
        },
        token_ids=True,
    )
    world = World()
    run(new, world, reuse=old.out)
    assert world.engine.served == [5, 0, 2], "third `a` and the new row; failures are not copied"
    assert f"reused 3 answers of {old.out}; 3 rows are left" in world.reporter.said
    texts = {row["text"] for row in results(old)} - {None}
    rows = results(new)
    assert [row["text"] in texts for row in rows] == [False, True, False, True, True, False]
    assert rows[1]["token_ids"] == results(old)[0]["token_ids"]
    assert [rows[1]["deadline_met"], rows[3]["deadline_met"]] == [True, False]
    assert [rows[1][name] for name in ("ttft_s", "e2e_s", "target_passes")] == [None, None, 0]
    assert (rows[1]["drafted"], rows[1]["accept_histogram"]) == (0, [])
    attempt = manifest(new)["attempts"][0]
    assert (attempt["reused_rows"], attempt["reused_tokens"], attempt["rows"]) == (3, 9, 3)


def test_reused_answers_are_held_to_the_promises_of_the_run_that_reuses_them(tmp_path: Path) -> None:
    old = save_job(tmp_path / "old", {"prompt": ["a", "b", "c", "d"], "deadline_s": [-1.0, None, None, None]})
    run(old)
    assert (results(old)[0]["slo_met"], results(old)[0]["miss_reason"]) == (False, "slow")
    promises: dict[str, object] = {
        "prompt": ["a", "b", "c", "d"],
        "deadline_s": [1e6, None, None, -1.0],
        "tpot_slo_ms": [None, 0.001, None, None],
        "ttft_slo_ms": [1e6, None, None, 1e6],
    }
    new = save_job(tmp_path / "new", promises)
    run(new, reuse=old.out)
    rows = results(new)
    assert [row["slo_met"] for row in rows] == [True, True, None, False]
    assert [row["miss_reason"] for row in rows] == [None, None, None, "waited"]
    assert [row["tpot_slo_ms"] for row in rows] == pytest.approx([None, 0.001, None, None])
    assert [row["ttft_slo_ms"] for row in rows] == [1e6, None, None, 1e6]


def test_when_everything_is_reused_no_model_is_loaded(tmp_path: Path) -> None:
    old = save_job(tmp_path / "old", {"prompt": ["a", "b"]})
    run(old)
    world = World()
    assert run(save_job(tmp_path / "new", {"prompt": ["b", "a"]}), world, reuse=old.out).exit_code == 0
    assert world.opened == 0


@pytest.mark.parametrize("prompts", [["a", "unspeakable", "b", None], ["unspeakable", None]])
def test_no_model_is_loaded_for_rows_that_fail_again(tmp_path: Path, prompts: list[str | None]) -> None:
    old = save_job(tmp_path / "old", {"prompt": prompts})
    assert run(old).exit_code == ExitCode.ROW_FAILURES
    before = results(old)
    retry, reuse = World(), World()
    outcome = run(old, retry, retry_failed=True)
    assert (outcome.ran, outcome.exit_code) == (True, ExitCode.ROW_FAILURES)
    assert [row["error_message"] for row in results(old)] == [row["error_message"] for row in before]
    new = save_job(tmp_path / "new", {"prompt": prompts})
    assert run(new, reuse, reuse=old.out).exit_code == ExitCode.ROW_FAILURES
    assert [row["error_code"] for row in results(new)] == [row["error_code"] for row in before]
    assert (retry.opened, reuse.opened) == (0, 0)
    attempts = manifest(old)["attempts"]
    assert [attempt["engine_seconds"] > 0 for attempt in attempts] == [True, False]
    assert attempts[1]["rows"] == len(prompts) - sum(row["error_code"] is None for row in before)
    world = tolerant()
    assert run(old, world, retry_failed=True).summary["rows"]["by_status"]["rejected"] == prompts.count(None)
    assert world.opened == 1, "a row that can be answered now needs it"


def test_rows_that_are_too_late_again_need_no_model_either(tmp_path: Path) -> None:
    table: dict[str, object] = {"prompt": ["a", "b"], "deadline_s": [None, -1.0]}
    config = save_job(tmp_path, table, late="drop")
    run(config, World(FakeEngine(choose=lambda rows: rows)))
    part = save_job(tmp_path, {"prompt": ["a", "b", "c"], "deadline_s": [None, -1.0, -2.0]}, late="drop")
    world = World()
    run(part, world)
    assert world.opened == 0
    assert results(part)[2]["status"] == "expired"
    assert results(part)[2]["error_code"] == "deadline_passed"
    coming = save_job(tmp_path, {"prompt": ["a", "b", "c", ""], "arrival_s": [0.0, 0.0, 0.0, 1e6]})
    run(coming, world)
    assert world.opened == 1, "a row that has not arrived is the engine's to wait for"


def test_the_listing_of_failures_is_that_of_the_present_command(tmp_path: Path) -> None:
    config = save_job(tmp_path, {"prompt": [f"prompt {number}" for number in range(20)]})
    first = run(config)
    cut = first.summary["rows"]["by_status"]["truncated"]
    assert cut > 3
    assert first.summary["failures"] == []
    strict = run(config.model_copy(update={"fail_on": ("truncated",)}))
    assert (strict.ran, strict.exit_code) == (False, ExitCode.ROW_FAILURES)
    (failure,) = strict.summary["failures"]
    assert (failure["status"], failure["rows"], len(failure["first"])) == ("truncated", cut, 3)


def test_reuse_refuses_other_settings_by_name(tmp_path: Path) -> None:
    old = save_job(tmp_path / "old", {"prompt": ["a"]})
    run(old)
    table: dict[str, object] = {"prompt": ["a"]}
    with pytest.raises(MismatchError, match="seed: 0 there, 1 now; max_tokens: 256 there, 7 now") as caught:
        run(save_job(tmp_path / "new", table, max_tokens=7, seed=1), reuse=old.out)
    assert "--reuse" in caught.value.hint
    with pytest.raises(MismatchError, match=r'quantization: "q4_1" there, "q8_0" now'):
        run(
            save_job(tmp_path / "new", table), World(files=replace(FILES, quantization="q8_0")), reuse=old.out
        )
    with pytest.raises(MismatchError, match="device"):
        run(save_job(tmp_path / "new", table, device="cuda"), reuse=old.out)
    with pytest.raises(UsageError, match="not a run directory"):
        run(save_job(tmp_path / "new", table), reuse=tmp_path / "nowhere")
    with pytest.raises(UsageError, match="own directory"):
        run(save_job(tmp_path / "new", table), reuse=tmp_path / "new" / "out")
    assert not (tmp_path / "new" / "out" / "results.parquet").exists()


def test_rows_taken_over_bind_the_run_to_the_same_numerics(tmp_path: Path) -> None:
    old = save_job(tmp_path / "old", {"prompt": ["a"]})
    run(old)
    elsewhere = World(FakeEngine(numerics={"device": "cuda", "dtype": "float32"}))
    with pytest.raises(MismatchError, match='device: "cpu" there, "cuda" now'):
        run(save_job(tmp_path / "new", {"prompt": ["a", "b"]}), elsewhere, reuse=old.out)
