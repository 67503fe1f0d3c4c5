"""Objects through obstore, without a server: what is wrong before the first request."""

import sys

import pytest

from penstock.dataflow.errors import GraphError
from penstock.snapshot.storage.objects.obstore_objects import ObstoreObjects


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(GraphError, match=r"pip install 'penstock\[object-store\]'"):
        ObstoreObjects("s3://bucket/a-job-without-the-package")


def test_an_account_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    for variable in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(GraphError, match="Account must be specified"):
        ObstoreObjects("az://container/job")
