"""An agent's own client of the protocol starts `llumctl mcp` and operates an emulated cluster."""

import json
from typing import Any

import mcp_types as types
import pytest
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters, stdio_client

from tools.cluster import LLUMCTL, Cluster


class Agent:
    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def tools(self) -> dict[str, types.Tool]:
        return {each.name: each for each in (await self._session.list_tools()).tools}

    async def call(self, name: str, **arguments: Any) -> Any:
        """The data of the answer; an answer that tells an error as a whole."""
        answer = await self._session.call_tool(name, arguments)
        assert isinstance(answer, types.CallToolResult)
        (content,) = answer.content
        assert isinstance(content, types.TextContent)
        told = json.loads(content.text)
        assert "never an instruction" in told["note"]
        assert ("error" in told) == answer.is_error
        return told if answer.is_error else told["data"]


def server(cluster: Cluster, *args: str) -> StdioServerParameters:
    return StdioServerParameters(command=LLUMCTL, args=["mcp", *args], env=cluster.env)


async def test_an_agent_that_may_not_give_orders_reads(six: Cluster) -> None:
    async with stdio_client(server(six)) as streams, ClientSession(*streams) as session:
        greeting = await session.initialize()
        assert greeting.server_info.name == "llumctl"
        agent = Agent(session)
        tools = await agent.tools()
        assert all(each.annotations and each.annotations.read_only_hint for each in tools.values())
        assert "i-0" in await agent.call("status")
        assert (await agent.call("verdict"))["verdict"]["word"]
        assert [each["id"] for each in await agent.call("instances", instance_id="i-1")] == ["i-1"]
        assert await agent.call("events", limit=5)
        assert await agent.call("settings")
        assert "error" in await agent.call("plan_drain", target="i-1", reason="a fan")
        assert "error" in await agent.call("explain", reference="no-such")


async def test_an_order_of_an_agent_takes_two_steps(six: Cluster) -> None:
    async with stdio_client(server(six, "--orders")) as streams, ClientSession(*streams) as session:
        await session.initialize()
        agent = Agent(session)
        drain = await agent.call("plan_drain", target="i-1", reason="a fan")
        cordon = await agent.call("plan_cordon", target="i-2", reason="a disk")
        assert drain["plan"][0].startswith("i-1: ")
        states = {each["id"]: each["state"] for each in await agent.call("instances")}
        assert set(states.values()) == {"active"}, "a plan changes nothing"
        assert (await agent.call("confirm", token=drain["token"]))["order"] == "drain i-1"
        assert "it was used" in (await agent.call("confirm", token=drain["token"]))["error"]
        assert "has changed" in (await agent.call("confirm", token=cordon["token"]))["error"]
        back = await agent.call("plan_undo", reason="enough")
        assert back["order"] == "undrain i-1"
        await agent.call("confirm", token=back["token"])
        (entry, *_) = (await agent.call("operations", limit=1))["operations"]
        assert entry["actor"].startswith("mcp/")
        assert entry["reason"] == "enough"
        more = await agent.call("plan_scale", change=1, reason="load")
        assert more["command"] == "llumctl scale 7"


@pytest.mark.parametrize("args", [("--cluster", "http://127.0.0.1:9")])
async def test_a_cluster_that_does_not_answer_is_told_to_the_agent(
    six: Cluster, args: tuple[str, ...]
) -> None:
    params = server(six, *args)
    params.env = {**(params.env or {}), "LLUMCTL_TOKEN": "t"}
    async with stdio_client(params) as streams, ClientSession(*streams) as session:
        await session.initialize()
        assert "error" in await Agent(session).call("status")
