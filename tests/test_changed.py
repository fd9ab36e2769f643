"""`make check` runs the tests of what changed."""

from tests.changed import ALWAYS, files_to_run


def test_a_module_runs_the_tests_that_import_it() -> None:
    tests = files_to_run(["lark/selection/rules.py"])
    assert "tests/selection/test_rules.py" in tests
    assert "tests/training/test_packing.py" not in tests


def test_a_module_that_no_test_imports_runs_the_tests_of_its_package() -> None:
    assert "tests/grading/test_cheating.py" in files_to_run(["lark/grading/strict/lexer.py"])


def test_a_changed_test_runs_alone_with_the_files_to_run_the_structure() -> None:
    assert files_to_run(["tests/pool/test_layouts.py"]) == {"tests/pool/test_layouts.py", *ALWAYS}


def test_pages_and_settings_run_the_files_to_run_commands() -> None:
    assert "tests/test_docs.py" in files_to_run(["docs/compare.md"])
    assert "tests/config/test_config.py" in files_to_run(["conf/method/lark.yaml"])
