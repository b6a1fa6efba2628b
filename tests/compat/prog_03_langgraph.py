"""Train a LangGraph agent: a ReAct agent with a tool, then a reviewer node with a prompt of its own."""

from __future__ import annotations

import random
from typing import Any, TypedDict

import art
from art.langgraph import init_chat_model, wrap_rollout
from art.local import LocalBackend

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import create_react_agent

QUESTIONS = ["does a fish swim?", "can the sun fall?"]


@tool
def look_up(word: str) -> str:
    """Look a word up in the encyclopedia."""
    return {"fish": "lives in water", "sun": "a star"}.get(word, "not found")


class State(TypedDict):
    question: str
    answer: str
    review: str


async def draft(state: State) -> dict[str, str]:
    agent = create_react_agent(init_chat_model("gpt-4o", temperature=0.7), [look_up])
    result = await agent.ainvoke(
        {
            "messages": [
                SystemMessage(content="Answer yes, no or maybe."),
                HumanMessage(content=state["question"]),
            ]
        },
        config={"recursion_limit": 4},
    )
    return {"answer": str(result["messages"][-1].content)}


async def review(state: State) -> dict[str, str]:
    model = init_chat_model()
    message = await model.ainvoke(
        [
            SystemMessage(content="Is the answer good? yes or no."),
            HumanMessage(content=f"{state['question']} {state['answer']}"),
        ]
    )
    return {"review": str(message.content)}


def build_graph() -> Any:
    graph = StateGraph(State)
    graph.add_node("draft", draft)
    graph.add_node("review", review)
    graph.add_edge(START, "draft")
    graph.add_edge("draft", "review")
    graph.add_edge("review", END)
    return graph.compile()


async def rollout(model: art.Model, question: str, attempt: int) -> art.Trajectory:
    trajectory = art.Trajectory(reward=0.0, metadata={"question": question})
    state = await build_graph().ainvoke({"question": question, "answer": "", "review": ""})
    liked = state["review"].startswith("yes")
    trajectory.reward = float(liked) + 0.1 * random.Random(f"{question}-{attempt}").random()
    trajectory.metrics["liked"] = liked
    return trajectory


async def main(base_model: str, art_path: str) -> dict[str, Any]:
    model = art.TrainableModel(name="langgraph-001", project="graphs", base_model=base_model)
    async with LocalBackend(path=art_path) as backend:
        await model.register(backend)
        groups = await art.gather_trajectory_groups(
            art.TrajectoryGroup(wrap_rollout(model, rollout)(model, question, i) for i in range(4))
            for question in QUESTIONS
        )
        result = await backend.train(model, groups, learning_rate=1e-5)
        await model.log(groups, split="train", metrics=result.metrics, step=result.step)
    first = groups[0].trajectories[0]
    return {
        "step": result.step,
        "rewards": [t.reward for group in groups for t in group],
        "roles": [message["role"] for message in first.messages()],
        "histories": [1 + len(t.additional_histories) for group in groups for t in group],
        "tool_names": [tool["function"]["name"] for tool in first.tools or []],
        "choices": sum(not isinstance(item, dict) for item in first.messages_and_choices),
    }
