"""The kind ``e2b``: a sandbox of E2B (https://e2b.dev), through their library (extra ``e2b``).

The key is read from ``E2B_API_KEY`` by the library and goes nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from ageval_boxes import _remote_recipe as recipes
from ageval_boxes._e2b_link import E2BAccount, E2BLink
from ageval_boxes._e2b_template import Templates
from ageval_boxes._remote import RemoteBox
from ageval_boxes._remote_link import Link


class E2BOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The options of an e2b box.

    `template_id`: the template to use, by name or id. Without it the template is
    ``<template>__<digest>`` of the task's ``environment/Dockerfile`` and of what that copies, or of our
    base; a template with just the name `template` is taken in place of the base.
    `build`: a template that is missing is built.
    `timeout_seconds`: how long the sandbox outlives us; it is put off while the attempt runs.
    `metadata`: further metadata of the sandbox.
    """

    template_id: str | None = None
    template: str = "ageval-attempt"
    build: bool = True
    timeout_seconds: int = 900
    metadata: dict[str, str] = msgspec.field(default_factory=dict)


class E2BBox(RemoteBox):
    """One E2B sandbox."""

    kind = "e2b"
    at_once = 20  # of the plan that costs nothing
    Options = E2BOptions
    key_name = "E2B_API_KEY"
    keys_at = "https://e2b.dev/dashboard"

    @classmethod
    def describe(cls, options: Mapping[str, Any]) -> str:
        """``e2b (template base)``."""
        return (
            f"e2b (template {options.get('template_id') or options.get('template') or E2BOptions().template})"
        )

    @property
    def _lifetime(self) -> float:
        return float(self.options.timeout_seconds)

    def _connect(self) -> Link:
        return E2BLink(self.options.timeout_seconds, self.options.metadata)

    async def _image(self, link: Link) -> str:
        given = self.options.template_id
        recipe = None if given else await asyncio.to_thread(recipes.of_task, self.spec.task_root)
        templates = Templates(self.options.template, build=self.options.build)
        return await templates.resolve(given, recipe, self.spec.layers)

    @classmethod
    def _account(cls) -> E2BAccount:
        return E2BAccount()
