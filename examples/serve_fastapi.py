"""Serve a compiled model with FastAPI.

It shows where the pieces go: the model is compiled and warmed when the server starts, requests are answered in
FastAPI's threads, and a page tells what is compiled. `serve_concurrently.py` puts requests together in batches.

    pip install fastapi httpx uvicorn
    python examples/serve_fastapi.py                              # asks itself, without a network
    uvicorn --app-dir examples serve_fastapi:app                  # as a server
"""

import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import torch
from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient
from pydantic import BaseModel
from serve_concurrently import Classifier

import dynajit

torch.manual_seed(0)
eager = Classifier().eval()
model = dynajit.compile(eager, fullgraph=True)


@asynccontextmanager
async def warmed(app: FastAPI) -> AsyncIterator[None]:
    """Compile before the first request: two lengths, for the second one makes the length symbolic."""
    with torch.inference_mode():
        for length in (8, 13):
            model(torch.ones(1, length, dtype=torch.int64))
    yield


app = FastAPI(lifespan=warmed)


class Text(BaseModel):
    tokens: list[int]


@app.post("/classify")
def classify(text: Text) -> dict[str, list[float]]:
    """Not `async`: FastAPI calls it in a thread of its pool, and kernels run without the interpreter's lock."""
    if not text.tokens or not all(0 < token < 1000 for token in text.tokens):
        raise HTTPException(422, "tokens are numbers from 1 to 999")
    with torch.inference_mode():
        return {"probabilities": model(torch.tensor([text.tokens]))[0].tolist()}


@app.get("/compiled")
def compiled() -> dict[str, int]:
    return dynajit.counters()


def main(requests: int = 200, threads: int = 8) -> dict[str, float]:
    texts = [torch.randint(1, 1000, (int(length),)) for length in torch.randint(5, 60, (requests,))]
    with TestClient(app) as client, ThreadPoolExecutor(threads) as pool:
        before = client.get("/compiled").json()["unique_graphs"]
        begin = time.perf_counter()
        answers = list(pool.map(lambda text: client.post("/classify", json={"tokens": text.tolist()}).json(), texts))
        seconds = time.perf_counter() - begin
        compiles = client.get("/compiled").json()["unique_graphs"] - before
        refused = client.post("/classify", json={"tokens": [-1]}).status_code
    with torch.inference_mode():
        expected = [eager(text.unsqueeze(0))[0] for text in texts]
    apart = max((torch.tensor(a["probabilities"]) - e).abs().max().item() for a, e in zip(answers, expected))
    print(
        f"{requests / seconds:.0f} requests a second, {threads} at a time; {compiles} graphs compiled after the start"
    )
    print(f"all answers are eager's, {apart:.1e} apart at most; a wrong request gets {refused}")
    return {"apart": apart, "compiles": compiles, "refused": refused}


if __name__ == "__main__":
    main()
