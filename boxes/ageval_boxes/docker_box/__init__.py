"""The kind ``docker``: one container for each attempt, on a Docker engine.

The container has an init that reaps, no new privileges, few capabilities, and is kept open by a
process of root that commands of the box's user cannot end. Where engine and host share a file
system and the box's user is known there (or we are root), ``/attempt`` is a directory of the host,
and evidence of the work stays where it can be read; else files are copied by archives.
"""

from ageval_boxes.docker_box._options import DockerOptions
from ageval_boxes.docker_box.box import DockerBox

__all__ = ["DockerBox", "DockerOptions"]
