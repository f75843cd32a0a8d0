from tests.study.conftest import make, rows  # noqa: F401 - fixtures
