"""The gateway lets a call go out when its provider's pace allows it."""

from __future__ import annotations

import asyncio
import time

from aiohttp import web
from gateway_kit import client, ended, gateway, provider, route

from pytest_ageval.attempt.clock import PhaseClock
from pytest_ageval.pacing import Holding, Pacer
from pytest_ageval.sessions.stall import Stalls

PATH = "/chat/completions"


def test_a_pause_asked_for_in_one_session_holds_the_others_back() -> None:
    async def main() -> None:
        times: list[float] = []

        async def handler(request: web.BaseRequest) -> web.Response:
            await request.read()
            times.append(time.monotonic())
            if len(times) == 1:
                return web.Response(status=429, headers={"retry-after": "1"}, text="{}")
            return web.json_response({"choices": []})

        async with gateway() as at, provider(handler) as origin, client() as http:
            pacer, clock = Pacer(), PhaseClock(10)
            stalls = Stalls(clock.freeze)
            holdings = [Holding(pacer.of(origin), lambda: stalls.waiting(paced=True)) for _ in range(2)]
            routes = [route(at, f"{origin}/v1", holding=holding) for holding in holdings]
            (one, first), (two, second) = routes
            answer = await http.post(f"{first}{PATH}", json={"model": "m", "messages": []})
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
            with stalls.invoke():
                await http.post(f"{second}{PATH}", json={"model": "m", "messages": []})
            assert times[1] - times[0] >= 0.95
            assert holdings[0].seconds() == 0
            assert 0.8 < holdings[1].seconds() < 2
            assert clock.frozen_seconds > 0.8
            call = await ended(two)
            assert call.status == 200
            assert call.seconds is not None and call.seconds < 0.9, "the wait is no time of the call"
            assert len(one.calls) == 1

    asyncio.run(main())


def test_an_agent_that_goes_away_while_it_waits_takes_no_place() -> None:
    async def main() -> None:
        count = 0

        async def handler(request: web.BaseRequest) -> web.Response:
            nonlocal count
            count += 1
            await request.read()
            return web.json_response({"choices": []})

        async with gateway() as at, provider(handler) as origin, client() as http:
            holding = Holding(Pacer().of(origin), Stalls(PhaseClock(None).freeze).waiting)
            _, base = route(at, f"{origin}/v1", holding=holding)
            holding.pace.hold(1.0)
            gone = asyncio.create_task(http.post(f"{base}{PATH}", json={"model": "m"}))
            await asyncio.sleep(0.3)
            gone.cancel()
            await asyncio.wait({gone})
            await asyncio.sleep(0.2)
            held = holding.seconds()
            await asyncio.sleep(0.2)
            assert holding.seconds() == held, "it is held back no more"
            answer = await http.post(f"{base}{PATH}", json={"model": "m"})
            assert answer.status_code == 200
            assert count == 1

    asyncio.run(main())
