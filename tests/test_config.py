"""Layers of the configuration, validation messages, identity."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbatch.config import JobConfig, Tier, identity, parse_bytes
from specbatch.config.values import POLICIES
from specbatch.errors import ConfigError
from specbatch.settings import load_config


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_flags_beat_environment_beats_job_file_beats_project_file_beats_defaults(tmp_path: Path) -> None:
    project = write(tmp_path / "specbatch.toml", "seed = 1\nmax_tokens = 1\ntop_k = 1\nmin_p = 0.1\n")
    job = write(tmp_path / "job.toml", "input = 'a.parquet'\nseed = 2\nmax_tokens = 2\ntop_k = 2\n")
    environ = {"SPECBATCH_SEED": "3", "SPECBATCH_MAX_TOKENS": "3", "SPECBATCH_CACHE": "/elsewhere"}
    config = load_config({"seed": 4}, job_file=job, environ=environ, project_file=project)
    assert (config.seed, config.max_tokens, config.top_k, config.min_p) == (4, 3, 2, 0.1)
    assert config.flush_rows == 256


def test_paths_in_a_job_file_are_relative_to_it(tmp_path: Path) -> None:
    job = write(
        tmp_path / "job.toml", "input = ['a.parquet', 's3://bucket/b.parquet']\nout = 'o'\nmodel = './m'\n"
    )
    config = load_config({}, job_file=job, environ={})
    assert config.input == (str(tmp_path / "a.parquet"), "s3://bucket/b.parquet")
    assert config.out == tmp_path / "o"
    assert config.model == str(tmp_path / "m")


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("max_token = 3", "unknown setting `max_token`", "did you mean `max_tokens`?"),
        ("tiers.gold = {priorty = 1}", "unknown setting `tiers.gold.priorty`", "did you mean `priority`?"),
        ("max_tokens = -3", "max_tokens = -3: input should be greater than or equal to 1", ""),
        ("max_tokens = true", "max_tokens = True: expected a number, not true or false", ""),
        ("temperature = nan", "temperature = nan: input should be a finite number", ""),
        ("kv_memory = 'lots'", "kv_memory = 'lots': expected a size such as 2GiB, 512MB or auto", ""),
        ("kv_memory = 0", "kv_memory = 0: expected a size such as 2GiB, 512MB or auto", ""),
        (f"kv_memory = '{'9' * 400}'", "expected at least one byte, and fewer than 2^63", ""),
        ("threads = 100000", "threads = 100000: input should be less than or equal to 1024", ""),
        (f"limit = {10**30}", "input should be less than", ""),
        ("max_failures = 'few'", "max_failures = 'few': expected a number of rows or a percentage", ""),
        ("policy = 'fast'", f"policy = 'fast': available: {POLICIES}", ""),
        ("policy = 'fixed:0'", f"policy = 'fixed:0': available: {POLICIES}", ""),
        ("tree_width = 0", "tree_width = 0: input should be greater than or equal to 1", ""),
        ("drafter = 'medusa'", "drafter = 'medusa': available: 'auto', 'suffix', 'model', 'head'", ""),
        ("drafter = 'model'", "drafter 'model' needs a draft_model", ""),
        ("draft_model = 'm'", "draft_model is for drafter 'model'; set that too", ""),
        ("draft_model = ''", "draft_model = '': string should have at least 1 character", ""),
        ("drafter = 'suffix'\ndraft_head = 'h'", "draft_head is not for drafter 'suffix'", ""),
        ("stop = ['']", "stop must not contain an empty string", ""),
        ("default_tier = 'gold'", "default_tier 'gold' is not one of interactive, standard, batch", ""),
        ("device = 'cpu'\ndtype = 'bfloat16'", "dtype 'bfloat16' is not supported on the CPU", ""),
        ("device = 'cuda'\nkernels = 'compiled'", "kernels 'compiled' work on the CPU only", ""),
        ("activations = 'int8'\nkernels = 'torch'", "activations 'int8' is for compiled kernels", ""),
        ("input = []", "no input given", "name a Parquet file"),
        ("=", "Invalid statement", "readable TOML"),
    ],
)
def test_a_wrong_job_file_is_one_line_that_names_the_key(
    tmp_path: Path, text: str, what: str, hint: str
) -> None:
    inputs = "" if text.startswith("input") else "input = 'a.parquet'\n"
    job = write(tmp_path / "job.toml", inputs + text)
    with pytest.raises(ConfigError) as caught:
        load_config({}, job_file=job, environ={})
    assert what in caught.value.what
    assert hint in caught.value.hint
    assert "\n" not in caught.value.what + caught.value.hint
    assert caught.value.exit_code == 2


def test_a_misspelt_environment_variable_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="SPECBATCH_MAX_TOKEN") as caught:
        load_config({"input": ("a",)}, environ={"SPECBATCH_MAX_TOKEN": "3"})
    assert caught.value.hint == "did you mean `SPECBATCH_MAX_TOKENS`?"


@pytest.mark.parametrize("name", ["input", "out", "system", "where", "template", "stop"])
def test_bytes_that_are_not_utf8_are_refused_by_the_name_of_their_setting(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is not valid Unicode"):
        load_config(
            {"input": ("a",), name: ("caf\udce9",) if name in ("input", "stop") else "caf\udce9"}, environ={}
        )


def test_lists_and_tables_in_the_environment_are_json() -> None:
    environ = {"SPECBATCH_STOP": '["a", "b"]', "SPECBATCH_TIERS": '{"gold": {"priority": 1}}'}
    config = load_config({"input": ("a",)}, environ=environ)
    assert config.stop == ("a", "b")
    assert config.tiers["gold"] == Tier(priority=1)
    assert "batch" in config.tiers


def test_the_frozen_config_survives_the_trip_through_json() -> None:
    config = JobConfig(input=("a",), kv_memory=2**30, out=Path("o"), tiers={"gold": Tier(priority=1)})
    assert JobConfig.model_validate(json.loads(config.model_dump_json())) == config


@given(st.integers(1, 10**6), st.sampled_from(["", "k", "M", "GiB", "KB", "mib"]))
def test_sizes_scale_by_their_unit(number: int, unit: str) -> None:
    factor = {"": 1, "k": 1000, "m": 10**6, "gib": 2**30, "kb": 1000, "mib": 2**20}[unit.lower()]
    assert parse_bytes(f"{number} {unit}") == number * factor


def test_allowed_failures_counts_or_scales() -> None:
    assert JobConfig(input=("a",), max_failures=3).allowed_failures(1000) == 3
    assert JobConfig(input=("a",), max_failures="5%").allowed_failures(199) == 9
    assert load_config({"input": ("a",)}, environ={"SPECBATCH_MAX_FAILURES": "7"}).allowed_failures(10) == 7


@dataclass
class FakeModel:
    digest: str = "d"
    side_digest: str = "s"
    quantization: str = "q4_1"


def test_identity_changes_with_what_shapes_text_and_only_with_that() -> None:
    model = FakeModel()
    base = identity(JobConfig(input=("a",)), model)
    assert base == identity(JobConfig(input=("b",), max_rows_in_flight=1, page_size=4, late="drop"), model)
    for change in (
        {"seed": 1},
        {"max_tokens": 5},
        {"system": "s"},
        {"stop": ("x",)},
        {"raw_prompts": True},
        {"template": "{a}"},
    ):
        (key,) = change
        other = identity(JobConfig.model_validate({"input": ("a",), **change}), model)
        assert [name for name in base if base[name] != other[name]] == [key]
    assert not {"policy", "drafter", "tiers", "where", "limit"} & set(base), "they change no row's text"
    assert identity(JobConfig(input=("a",)), FakeModel(side_digest="t")) == {**base, "side_digest": "t"}
    assert json.loads(json.dumps(base)) == base
