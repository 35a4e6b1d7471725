"""The page to play on becomes a page of the site, where scripts/build-play has made it."""

from __future__ import annotations

import pathlib
import shutil

PAGE = pathlib.Path(__file__).resolve().parents[1] / "build/play/play.html"


def on_post_build(config, **_):
    if PAGE.exists():
        shutil.copy(PAGE, pathlib.Path(config["site_dir"]) / "play.html")
