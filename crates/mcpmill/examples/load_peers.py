"""Makes rows with another program, as the example `load` makes them with mcpmill.

    python load_peers.py {curator|dd|dist} PORT ROWS

One text column, asked for at the chat endpoint on loopback with 64 requests in flight; what the program keeps of its
own (caches, viewers, telemetry) is off where it can be. The last line printed is JSON: the rows, and rows a second
from the call that starts the work to its end.
"""

import glob
import json
import os
import sys
import time

WHO, PORT, ROWS = sys.argv[1], sys.argv[2], int(sys.argv[3])
URL = f"http://127.0.0.1:{PORT}/v1"
CONCURRENCY = 64
SYSTEM = "Write one request that a person would put to an assistant. One or two sentences, no greeting."

os.environ.update(
    OPENAI_API_KEY="none", CURATOR_DISABLE_CACHE="1", CURATOR_DISABLE_RICH_DISPLAY="1", CURATOR_VIEWER="0",
    TELEMETRY_ENABLED="false", NEMO_TELEMETRY_ENABLED="false", HF_HUB_OFFLINE="1", LITELLM_LOCAL_MODEL_COST_MAP="True",
    CURATOR_CACHE_DIR=os.path.join(os.getcwd(), "curator"), HF_HOME=os.path.join(os.getcwd(), "hf"),
)
# The vocabulary of tiktoken is not fetched: litellm, in one of the environments beside this one, brings it along.
TOKENIZERS = "*/lib/python*/site-packages/litellm/litellm_core_utils/tokenizers"
for folder in glob.glob(os.path.join(os.path.dirname(sys.prefix), TOKENIZERS)):
    os.environ["TIKTOKEN_CACHE_DIR"] = folder


def topics():
    return [f"the history of harbour {place} and of the people who worked there" for place in range(ROWS)]


def curator():
    from bespokelabs import curator
    from datasets import Dataset

    class Requests(curator.LLM):
        return_completions_object = False

        def prompt(self, row):
            return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Topic: {row['topic']}"}]

        def parse(self, row, response):
            return {"topic": row["topic"], "request": response}

    llm = Requests(
        model_name="gpt-4o-mini",
        backend="openai",
        backend_params={
            "base_url": URL, "api_key": "none", "max_requests_per_minute": 10**7, "max_tokens_per_minute": 10**10,
            "max_concurrent_requests": CONCURRENCY,
        },
        generation_params={"temperature": 0.7, "max_tokens": 100},
    )
    rows = Dataset.from_list([{"topic": topic} for topic in topics()])
    started = time.time()
    made = llm(rows)
    seconds = time.time() - started
    return len(getattr(made, "dataset", made)), seconds


def dd():
    import data_designer.config as config
    from data_designer.interface import DataDesigner

    provider = config.ModelProvider(name="loopback", endpoint=URL, provider_type="openai", api_key="none")
    model = config.ModelConfig(
        alias="m", model="loopback", provider="loopback", skip_health_check=True,
        inference_parameters=config.ChatCompletionInferenceParams(
            max_parallel_requests=CONCURRENCY, temperature=0.7, max_tokens=100
        ),
    )
    builder = config.DataDesignerConfigBuilder(model_configs=[model])
    builder.add_column(config.SamplerColumnConfig(name="topic", sampler_type="uuid", params=config.UUIDSamplerParams()))
    builder.add_column(
        config.LLMTextColumnConfig(name="request", model_alias="m", system_prompt=SYSTEM, prompt="Topic: {{ topic }}")
    )
    designer = DataDesigner(artifact_path=os.path.join(os.getcwd(), "artifacts"), model_providers=[provider])
    started = time.time()
    made = designer.create(builder, num_records=ROWS)
    seconds = time.time() - started
    return len(made.load_dataset()), seconds


def dist():
    from distilabel.models import OpenAILLM
    from distilabel.pipeline import Pipeline
    from distilabel.steps import LoadDataFromDicts
    from distilabel.steps.tasks import TextGeneration

    with Pipeline(name="load") as pipeline:
        load = LoadDataFromDicts(data=[{"instruction": f"Topic: {topic}"} for topic in topics()], batch_size=CONCURRENCY)
        llm = OpenAILLM(
            model="loopback", base_url=URL, api_key="none", generation_kwargs={"temperature": 0.7, "max_new_tokens": 100}
        )
        load >> TextGeneration(llm=llm, system_prompt=SYSTEM, input_batch_size=CONCURRENCY)
    started = time.time()
    made = pipeline.run(use_cache=False)
    seconds = time.time() - started
    return len(made["default"]["train"]), seconds


if __name__ == "__main__":
    count, seconds = {"curator": curator, "dd": dd, "dist": dist}[WHO]()
    assert count == ROWS, f"{count} of {ROWS} rows"
    print()
    print(json.dumps({"rows": count, "rows_per_s": round(count / seconds, 1)}))
