"""The frames of a slider come into the page; a page of a chapter that has just run must have them."""

from types import SimpleNamespace

import pytest
import slider_frames
from docutils import nodes
from docutils.utils import new_document
from sphinx.errors import ExtensionError

STORED = '<div class="attnbook-slider" data-frames="abc"><div><img></div></div>'


@pytest.fixture
def page():
    document = new_document("page")
    document += nodes.raw("", STORED, format="html")
    document += nodes.raw("", "<p>another output</p>", format="html")
    return document


def app(root, mode):
    noted = []
    env = SimpleNamespace(docname="a", note_dependency=noted.append)
    return SimpleNamespace(srcdir=str(root), config=SimpleNamespace(nb_execution_mode=mode), env=env, noted=noted)


@pytest.mark.parametrize("mode", ["off", "cache"])
def test_frames_take_the_place_of_the_stored_picture(page, tmp_path, mode):
    folder = slider_frames.frames_folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / "abc.html").write_text("<div>all frames</div>", encoding="utf-8")
    built = app(tmp_path, mode)
    slider_frames.put_frames(built, page)
    assert [node.astext() for node in page.findall(nodes.raw)] == ["<div>all frames</div>", "<p>another output</p>"]
    assert built.noted == [str(folder / "abc.html")]


def test_without_frames_stored_pages_keep_their_picture_and_fresh_ones_are_refused(page, tmp_path):
    slider_frames.put_frames(app(tmp_path, "off"), page)
    assert page.children[0].astext() == STORED
    with pytest.raises(ExtensionError, match="a: no frames for slider abc"):
        slider_frames.put_frames(app(tmp_path, "cache"), page)
