"""Pictures of a machine as files: its views as SVG and the expanded mesh of a cube as YAML.

All files are written under other names first and then renamed, so that a folder never holds half a picture.
"""

from __future__ import annotations

from pathlib import Path

from kernbench.common.errors import UsageError
from kernbench.report.diagrams.svg import render_svg
from kernbench.report.diagrams.views import machine_views
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.mesh import build_mesh, mesh_as_yaml

MESH_FILE = "cube_mesh.yaml"


def diagram_texts(graph: TopologyGraph) -> dict[str, str]:
    """The content of each file, by name."""
    texts = {f"{name}_view.svg": render_svg(view, graph.spec) for name, view in machine_views(graph.spec).items()}
    texts[MESH_FILE] = mesh_as_yaml(build_mesh(graph.spec.cube))
    return texts


def emit_diagrams(graph: TopologyGraph, folder: Path) -> list[Path]:
    """Write the files into a folder, made if it is not there; raises UsageError when that cannot be."""
    texts = diagram_texts(graph)
    unfinished: list[Path] = []
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageError(
                f"'{folder}' is a file", where="--emit", hint="name a folder; it is made if it is not there"
            )
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            part = folder / f".{name}.part"
            unfinished.append(part)
            part.write_text(text, encoding="utf-8", newline="\n")
        for name, part in zip(texts, list(unfinished), strict=True):
            part.replace(folder / name)
            unfinished.remove(part)
    except (OSError, ValueError) as error:  # ValueError: a name no file system takes
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(
            f"the pictures cannot be written: {reason}", where=f"{folder}", hint="name a folder you may write to"
        ) from error
    finally:
        for part in unfinished:
            _remove(part)
    return [folder / name for name in texts]


def _remove(part: Path) -> None:
    try:
        part.unlink(missing_ok=True)
    except (OSError, ValueError):
        return  # the failed write is reported
