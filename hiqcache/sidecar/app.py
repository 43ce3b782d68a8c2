"""The sidecar's HTTP interface. Every handler asks the engines itself; nothing runs between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Receive, Scope, Send

from hiqcache import __version__
from hiqcache.sidecar.address import Address
from hiqcache.sidecar.collector import ReadingCollector
from hiqcache.sidecar.engine import Engine, make_client, read_all
from hiqcache.sidecar.page import load_page
from hiqcache.sidecar.summary import Summary, summarize

NO_STORE = {"cache-control": "no-store"}


class Alive(BaseModel):
    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    ready: bool = Field(description="Whether every engine answers.")
    engines: dict[str, bool] = Field(description="Whether it answers, by name.")


class HeadAsGet:
    """Answers HEAD wherever there is GET: probes ask so, and FastAPI would say 405.

    The server sends what a GET would, headers alone, since its own scope still says HEAD.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self.app(scope, receive, send)


def create_app(
    addresses: Sequence[Address], timeout: float, registry: CollectorRegistry | None = None
) -> FastAPI:
    """The sidecar of some engines.

    Parameters
    ----------
    addresses
        From `parse_addresses`, at least one.
    timeout
        Seconds for one read of an engine.
    registry
        Metrics that follow the engines'; by default those of this process.
    """
    own = process_registry() if registry is None else registry
    engines: list[Engine] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with make_client() as client:
            engines[:] = [Engine(address, timeout, client) for address in addresses]
            yield

    app = FastAPI(
        title="HiQCache sidecar",
        version=__version__,
        lifespan=lifespan,
        # The interactive pages load their scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(HeadAsGet)
    page = load_page()

    @app.get("/metrics", summary="Prometheus metrics")
    async def metrics(request: Request) -> Response:
        readings = await read_all(engines)
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        text = encode(ReadingCollector(readings, engines, own))
        return Response(text, media_type=content_type, headers=NO_STORE)

    @app.get("/api/v1/summary", summary="All figures as JSON")
    async def summary(response: Response) -> Summary:
        response.headers.update(NO_STORE)
        return summarize(await read_all(engines))

    @app.get("/healthz", summary="The sidecar lives")
    async def healthz() -> Alive:
        return Alive()

    @app.get("/readyz", summary="The engines answer", responses={503: {"model": Ready}})
    async def readyz() -> JSONResponse:
        up = {r.name or "engine": r.figures is not None for r in await read_all(engines)}
        ready = Ready(ready=all(up.values()), engines=up)
        return JSONResponse(ready.model_dump(), 200 if ready.ready else 503, NO_STORE)

    @app.get("/", summary="The status page", response_class=HTMLResponse)
    async def status_page() -> HTMLResponse:
        return HTMLResponse(page.html, headers=page.headers)

    return app


def process_registry() -> CollectorRegistry:
    """Memory, CPU time, start time and file descriptors of this process."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry
