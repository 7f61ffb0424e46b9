"""Templates of E2B: looked up, and built with E2B's own builder when they are missing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ageval_boxes import _remote_recipe as recipes
from ageval_boxes._remote_build import BuildLog, asking, once
from ageval_boxes._remote_sandbox import sdk
from pytest_ageval.box import ImageLayer

#: As whom commands run in a template that says nothing of a user.
_USER = "user"


class Templates:
    """The templates whose names begin with `prefix`. `build`: missing ones are built."""

    def __init__(self, prefix: str, *, build: bool) -> None:
        self._e2b = sdk("e2b", "e2b")
        self._prefix = prefix
        self._build = build

    async def resolve(
        self, template_id: str | None, recipe: recipes.Recipe | None, layers: Sequence[ImageLayer]
    ) -> str:
        """The name of the template to use: `template_id`, or of `recipe`, or of our base; with `layers`.

        Each layer makes a template from the one below it, so that a base is shared. BoxError
        ``environment_image_unresolved`` when one is missing and may not or cannot be built.
        """
        user = _USER
        if template_id is None and recipe is None:
            # One that the account keeps for this.
            kept = await asking("e2b", lambda: self._exists(self._prefix))
            template_id = self._prefix if kept else None
        if template_id is not None:
            name, digest = template_id, hashlib.sha256(template_id.encode()).hexdigest()
        else:
            recipe = recipe or recipes.of_base()
            digest = recipe.digest
            name = self._name(digest)
            user = recipes.last_user(recipe.text, _USER)
            await self._once(name, self._of_recipe(recipe), recipe.source)
        for layer in layers:
            digest = recipes.stacked(digest, layer)
            below, name = name, self._name(digest)
            await self._once(name, self._of_layer(below, layer, user), f"the layer {layer.name} on {below}")
        return name

    def _name(self, digest: str) -> str:
        return f"{self._prefix}__{digest[:12]}"

    async def _exists(self, name: str) -> bool:
        return bool(await self._e2b.AsyncTemplate.exists(name))

    def _of_recipe(self, recipe: recipes.Recipe) -> Callable[[], Any]:
        return lambda: self._new(recipe.context, recipes.EXCLUDED).from_dockerfile(recipe.text)

    def _of_layer(self, below: str, layer: ImageLayer, user: str) -> Callable[[], Any]:
        def make() -> Any:
            template = self._new(layer.context)
            # The image is only what the parser asks for: `from_template` takes its place.
            template.from_dockerfile(f"FROM scratch\n{recipes.layer_recipe(layer, user=user)}")
            return template.from_template(below)

        return make

    def _new(self, context: Path | None, excluded: Sequence[str] = ()) -> Any:
        # Without a context nothing is copied, and no directory of the caller is taken for it.
        path = Path(__file__).parent / "docker_box" / "base" if context is None else context
        return self._e2b.AsyncTemplate(file_context_path=str(path), file_ignore_patterns=list(excluded))

    async def _once(self, name: str, make: Callable[[], Any], what: str) -> None:
        async def build(said: BuildLog) -> None:
            await self._e2b.AsyncTemplate.build(make(), name, on_build_logs=said)

        missing = (
            f"there is no E2B template {name!r} for {what}, and the option build is false; leave build out, "
            f"or build it once with E2B's Template.build, or set template_id"
        )
        await once(
            "e2b",
            name,
            there=lambda: self._exists(name),
            build=build,
            missing=None if self._build else missing,
        )
