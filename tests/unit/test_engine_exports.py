"""Addresses that contain their own key: each is for one checkpoint and expires."""

import asyncio

import httpx
import pytest

from sweeper.engine import app
from sweeper.engine.checkpoints import Checkpoint, Place, Vault
from sweeper.engine.errors import Unknown
from sweeper.engine.exports import Tickets
from sweeper.engine.lora import LoraConfig
from sweeper.engine.models import Models
from sweeper.engine.service import Service

PLACE = Place("s:train:0", "external_weights", "a")


def test_a_ticket_is_for_one_place_and_for_an_hour():
    now = [1000.0]
    tickets = Tickets(lambda: now[0])
    ticket, expires = tickets.issue(PLACE)
    assert tickets.place(ticket) == PLACE and expires == 4600
    now[0] = 4599.0
    assert tickets.place(ticket) == PLACE
    now[0] = 4600.0
    for none in (ticket, "", "x"):
        with pytest.raises(Unknown, match="request the checkpoint's addresses again"):
            tickets.place(none)


def test_files_need_their_ticket_and_no_token(tmp_path):
    service = Service(Models(str(tmp_path)), Vault(str(tmp_path / "vault")), str(tmp_path / "s"))
    service.vault.save(PLACE, Checkpoint("tiny/qwen3", LoraConfig(rank=2), {}))
    ticket, _ = service.tickets.issue(PLACE)
    built = app.build(service, {}, token="tml-secret")

    async def status(path):
        transport = httpx.ASGITransport(built)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            return (await http.get(f"/api/v1/{path}")).status_code

    expected = {
        f"files/{ticket}/adapter_config.json": 200,
        f"files/{ticket}/other": 404,
        "files/guess/adapter_config.json": 404,
        f"files/../checkpoints?{ticket}": 401,
        f"files/{ticket}/../../checkpoints": 401,
    }
    assert {path: asyncio.run(status(path)) for path in expected} == expected
    service.scheduler.stop(5)
