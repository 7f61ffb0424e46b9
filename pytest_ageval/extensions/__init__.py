"""Plugins in the format ``ageval.plugin/1``: a directory with plugin.yaml and the code in ``src/``.

An ordinary pytest plugin needs none of this: it implements the hooks. This package reads directories
that were written for ageval, and lets what they hold take part in the same extension points.
"""

from pytest_ageval.extensions.manifest import PluginPackage, find_plugins, read_plugin

__all__ = ["PluginPackage", "find_plugins", "read_plugin"]
