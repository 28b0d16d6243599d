"""Runs a batch with OpenAI's client, and prints its answers."""

import json
import sys
import time

from openai import OpenAI

ai = OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="unused")
questions = ["What is a batch?", "What is a queue?"]
lines = [
    {
        "custom_id": f"question-{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "llama-3.1-8b",
            "max_tokens": 20,
            "messages": [{"role": "user", "content": question}],
        },
    }
    for number, question in enumerate(questions)
]
file = ai.files.create(
    file=("questions.jsonl", "\n".join(json.dumps(line) for line in lines).encode()), purpose="batch"
)
batch = ai.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(0.5)
    batch = ai.batches.retrieve(batch.id)
sys.stdout.write(f"{batch.status}: {batch.request_counts}\n")
for line in ai.files.content(batch.output_file_id).iter_lines():
    answer = json.loads(line)
    text = answer["response"]["body"]["choices"][0]["message"]["content"]
    sys.stdout.write(f"{answer['custom_id']}: {text}\n")
