"""The place of snapshots: a folder, or an object store with a local folder."""

from pathlib import Path

import pytest

from penstock.dataflow.config import JobConfig
from penstock.dataflow.errors import GraphError


def located(**settings: str) -> JobConfig:
    config = JobConfig(**settings)  # type: ignore[arg-type]
    config.validate()
    config.validate()  # which changes nothing
    return config


@pytest.mark.parametrize("url", ["s3://bucket/jobs/a", "gs://bucket", "az://container/job"])
def test_a_url_makes_the_folder_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config, same = located(checkpoint_dir=url), located(checkpoint_dir=f"{url}/")
    assert config.snapshot_store == url
    assert config.checkpoint_dir is not None and same.checkpoint_dir == config.checkpoint_dir
    assert Path(config.checkpoint_dir).is_relative_to(tmp_path)
    other = located(checkpoint_dir=f"{url}/other")
    assert other.checkpoint_dir != config.checkpoint_dir


def test_the_folder_of_a_store_can_be_chosen() -> None:
    config = located(checkpoint_dir="/data/job", snapshot_store="s3://bucket/job")
    assert (config.checkpoint_dir, config.snapshot_store) == ("/data/job", "s3://bucket/job")


@pytest.mark.parametrize("store", ["/data/job", "file:///data", "memory://x", "bucket"])
def test_a_store_that_is_none_is_refused(store: str) -> None:
    with pytest.raises(GraphError, match="snapshot_store is the URL of an object store"):
        located(snapshot_store=store)


@pytest.mark.parametrize("url", ["s3://", "gs:///"])
def test_a_url_without_a_bucket_is_refused(url: str) -> None:
    with pytest.raises(GraphError, match="names no bucket"):
        located(checkpoint_dir=url)
