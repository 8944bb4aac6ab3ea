"""Settings: types, unknown names, patching, the environment."""

import copy
import threading

import pytest

from dynajit.config import Config, config
from dynajit.exc import ConfigError, DynajitError


def test_defaults_are_documented_and_typed() -> None:
    fresh = Config()
    text = fresh.describe()
    for name, field in Config.__dataclass_fields__.items():
        assert f"{name} = " in text and f"DYNAJIT_{name.upper()}" in text
        assert len(field.metadata["doc"]) > 10
        assert type(getattr(fresh, name)) is field.type
    assert fresh.recompile_limit == 8
    assert fresh.suppress_errors is False


def test_unknown_field_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'recompile_limits'.*known: .*recompile_limit"):
        config.recompile_limits = 3  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"known: .*cache_dir"):
        config.patch(cache_directory="x")
    with pytest.raises(AttributeError, match=r"known: .*cache_dir"):
        config.cache_directory  # noqa: B018
    assert not hasattr(config, "nothing_like_it")


@pytest.mark.parametrize(
    ("name", "value"), [("recompile_limit", "8"), ("recompile_limit", True), ("suppress_errors", 1)]
)
def test_wrong_type_is_refused(name: str, value: object) -> None:
    before = getattr(config, name)
    with pytest.raises(ConfigError, match=f"config.{name} takes"):
        setattr(config, name, value)
    assert getattr(config, name) == before


def test_unknown_simd_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'sse2'.*avx2"):
        config.simd = "sse2"


def test_config_error_is_a_value_error_not_a_compiler_error() -> None:
    assert issubclass(ConfigError, ValueError)
    assert not issubclass(ConfigError, DynajitError)


def test_patch_restores_after_an_exception() -> None:
    before = config.recompile_limit
    with pytest.raises(ZeroDivisionError), config.patch(recompile_limit=3, threads=2):
        assert (config.recompile_limit, config.threads) == (3, 2)
        raise ZeroDivisionError
    assert config.recompile_limit == before and config.threads == 0


def test_patch_with_a_bad_value_changes_nothing() -> None:
    before = config.recompile_limit
    with pytest.raises(ConfigError), config.patch(recompile_limit=3, threads="two"):
        pytest.fail("entered")
    assert config.recompile_limit == before


def test_patch_nests_and_decorates() -> None:
    before = config.recompile_limit

    @config.patch(recompile_limit=2)
    def limit(depth: int) -> list[int]:
        return [config.recompile_limit, *(limit(depth - 1) if depth else [])]

    assert limit(2) == [2, 2, 2]
    assert config.recompile_limit == before
    patch = config.patch(recompile_limit=5)
    with patch, config.patch(recompile_limit=6), patch:
        assert config.recompile_limit == 5
    assert config.recompile_limit == before


def test_environment() -> None:
    fresh = Config()
    fresh.load_environment(
        {"DYNAJIT_RECOMPILE_LIMIT": "3", "DYNAJIT_SUPPRESS_ERRORS": "yes", "DYNAJIT_COMPILER": "/x/cc"}
    )
    assert (fresh.recompile_limit, fresh.suppress_errors, fresh.compiler) == (3, True, "/x/cc")
    with pytest.raises(ConfigError, match="DYNAJIT_RECOMPILE_LIMIT takes a whole number"):
        fresh.load_environment({"DYNAJIT_RECOMPILE_LIMIT": "many"})
    with pytest.raises(ConfigError, match="DYNAJIT_SUPPRESS_ERRORS takes one of"):
        fresh.load_environment({"DYNAJIT_SUPPRESS_ERRORS": "maybe"})
    with pytest.raises(ConfigError, match=r"DYNAJIT_SIMD|simd"):
        fresh.load_environment({"DYNAJIT_SIMD": "mmx"})


def test_copies_are_independent_and_values_are_seen_by_threads() -> None:
    twin = copy.deepcopy(config)
    twin.recompile_limit = 99
    assert config.recompile_limit != 99
    seen = []
    with config.patch(recompile_limit=4):
        thread = threading.Thread(target=lambda: seen.append(config.recompile_limit))
        thread.start()
        thread.join()
    assert seen == [4]


def test_misspelt_variables_are_told() -> None:
    with pytest.warns(UserWarning, match=r"_LIMITS means nothing; did you mean DYNAJIT_RECOMPILE_LIMIT\?"):
        Config().load_environment({"DYNAJIT_RECOMPILE_LIMITS": "3"})
    with pytest.warns(UserWarning, match=r"did you mean DYNAJIT_LOGS\?"):
        Config().load_environment({"DYNAJIT_LOG": "guards"})


def test_other_variables_are_not(recwarn: pytest.WarningsRecorder) -> None:
    Config().load_environment({"DYNAJIT_SANITIZE": "1", "DYNAJIT_LOGS": "guards", "RECOMPILE_LIMITS": "3"})
    assert not recwarn.list


def test_unknown_names_are_told_what_is_like_them() -> None:
    with pytest.raises(ConfigError, match=r"'recompile_limits': did you mean recompile_limit\?"):
        config.recompile_limits = 3  # type: ignore[attr-defined]
