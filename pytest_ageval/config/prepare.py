"""Makes a data set ready when it is asked to: fetches declared assets, runs the declared script."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import ssl
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname, urlopen

import certifi

from pytest_ageval.config.check import Source
from pytest_ageval.config.dataset import MANIFEST, Dataset
from pytest_ageval.config.hashing import file_digest
from pytest_ageval.config.where import join_pointer
from pytest_ageval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_ageval.config.formats import Asset

#: Seconds that the script may take.
SCRIPT_SECONDS = 600
#: Seconds without a byte after which a download is given up.
STALL_SECONDS = 120


def prepare(dataset: Dataset, say: Callable[[str], None]) -> None:
    """Fetch what is missing, run the script, and note that it ran.

    Raises ConfigError ``asset_download_failed``, ``asset_digest_mismatch`` or ``prepare_failed``.
    """
    source = Source(dataset.root / MANIFEST)
    for index, asset in enumerate(dataset.assets):
        target = dataset.root / asset.path
        if not target.is_file():
            say(f"fetching {asset.path}")
            _fetch(asset, target, source, join_pointer("assets", index))
    if dataset.prepare is not None:
        say(f"running {dataset.prepare}")
        _run(dataset, dataset.prepare, source)
        marker = {
            "dataset_id": dataset.dataset_id,
            "key": file_digest(dataset.root / dataset.prepare),
        }
        path = dataset.root / ".ageval-prepare.json"
        path.write_text(json.dumps(marker) + "\n", encoding="utf-8")
    dataset.check_ready()


def _fetch(asset: Asset, target: Path, source: Source, pointer: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    try:
        found = _download(asset.url, partial)
        if found != asset.sha256:
            raise source.error(
                "asset_digest_mismatch",
                f"{asset.url} has sha256 {found}, declared is {asset.sha256}",
                pointer,
            )
        partial.replace(target)
    except (OSError, http.client.HTTPException) as error:
        raise source.error("asset_download_failed", f"{asset.url}: {error}", pointer) from error
    finally:
        partial.unlink(missing_ok=True)


def _download(url: str, target: Path) -> str:
    """Write what is at `url` to `target`; the sha256 in hex."""
    total = hashlib.sha256()
    with target.open("wb") as stream:
        if url.startswith("file://"):
            with Path(url2pathname(urlsplit(url).path)).open("rb") as local:
                while chunk := local.read(1 << 20):
                    total.update(chunk)
                    stream.write(chunk)
        else:
            named = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
            context = ssl.create_default_context(cafile=None if named else certifi.where())
            # A URL of another scheme than http, https and file is refused where the manifest is read.
            with urlopen(url, timeout=STALL_SECONDS, context=context) as response:  # noqa: S310
                while chunk := response.read(1 << 20):
                    total.update(chunk)
                    stream.write(chunk)
    return total.hexdigest()


def _run(dataset: Dataset, script: str, source: Source) -> None:
    root = dataset.root.absolute()
    if not (root / script).is_file():
        raise source.error("missing_reference", f"{script} is not there", "/prepare")
    try:
        done = subprocess.run(
            ["/bin/sh", script],
            cwd=root,
            env={**os.environ, "AGEVAL_DATASET_ROOT": str(root)},
            timeout=SCRIPT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise source.error(
            "prepare_failed", f"{script} was ended after {SCRIPT_SECONDS} s", "/prepare"
        ) from None
    if done.returncode != 0:
        raise ConfigError(
            "prepare_failed", f"{script} ended with exit code {done.returncode}", file=source.shown
        )
