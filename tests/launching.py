"""Where the launch buttons of a chapter must lead, worked out from ``_config.yml`` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import yaml

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"classic": "tree", "jupyterlab": "lab/tree"}


def settings() -> dict[str, Any]:
    """The settings of the book."""
    return yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))


def addresses(settings: dict[str, Any], page: str) -> dict[str, str]:
    """Service to address, for each service that the settings switch on; none while the repository has no address.

    ``page`` has no suffix.
    """
    repository, buttons = settings["repository"], settings["launch_buttons"]
    if not repository["url"]:
        return {}
    owner, name = repository["url"].removeprefix("https://github.com/").split("/")
    branch, view = repository["branch"], FOLDERS[buttons["notebook_interface"]]
    path = "/".join(filter(None, [repository["path_to_book"].strip("/"), f"{page}.ipynb"]))
    pull = {"repo": repository["url"], "urlpath": f"{view}/{name}/{path}", "branch": branch}
    all_services = {
        "colab": ("colab_url", f"/github/{owner}/{name}/blob/{branch}/{path}"),
        "binder": ("binderhub_url", f"/v2/gh/{owner}/{name}/{branch}?urlpath={view}/{path}"),
        "jupyterhub": ("jupyterhub_url", f"/hub/user-redirect/git-pull?{urlencode(pull, safe='/')}"),
    }
    return {service: buttons[key] + rest for service, (key, rest) in all_services.items() if buttons.get(key)}


def file_opened(service: str, address: str) -> str:
    """The file of the repository that the service would open."""
    parts = urlsplit(address)
    if service == "colab":
        return parts.path.split("/", 5)[-1].split("/", 1)[1]
    path = parse_qs(parts.query)["urlpath"][0].split("tree/", 1)[1]
    return path.split("/", 1)[1] if service == "jupyterhub" else path
