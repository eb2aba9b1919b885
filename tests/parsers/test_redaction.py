"""Secrets in a log's line are masked, and nothing else is."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from megatron_monitor.parsers.redaction import masked
from tests.conftest import examples
from tests.lines import line

KEY = "5ecretbeef" + "0123456789abcdef" * 2
HELD = [
    (
        f"srun -n 0 --export=ALL,WANDB_API_KEY={KEY},PYTHONPATH=/x",
        "srun -n 0 --export=ALL,WANDB_API_KEY=***,PYTHONPATH=/x",
    ),
    (f"{{'WANDB_API_KEY': '{KEY}', 'A': 1}}", "{'WANDB_API_KEY': '***', 'A': 1}"),
    (f"Namespace(wandb_api_key='{KEY}', lr=0.1)", "Namespace(wandb_api_key='***', lr=0.1)"),
    (f"  wandb_api_key .................... {KEY}", "  wandb_api_key .................... ***"),
    (f"--wandb-api-key {KEY} --lr 1", "--wandb-api-key *** --lr 1"),
    (f"wandb login --relogin {KEY}", "wandb login --relogin ***"),
    ("hf_token ...... hf_5ecretbeefGHIJKLMNOP", "hf_token ...... ***"),
    ("downloading with hf_5ecretbeefGHIJKLMNOP now", "downloading with *** now"),
    ("id AKIA5ECRETBEEF567890 of", "id *** of"),
    ("AWS_SECRET_ACCESS_KEY=5ecretbeef/K7MD+bPx AWS_REGION=eu", "AWS_SECRET_ACCESS_KEY=*** AWS_REGION=eu"),
    ("Authorization: Bearer 5ecretbeef.def", "Authorization: Bearer ***"),
    ("-H 'Authorization: Basic 5ecretbeefdXNl='", "-H 'Authorization: Basic ***'"),
    ("cloning https://me:5ecretbeef@git.example/x", "cloning https://me:***@git.example/x"),
    ('PASSWORD: "5ecretbeef and more"', 'PASSWORD: "***"'),
    ("mysql --password 5ecretbeef -v", "mysql --password *** -v"),
    ("MYSQL_PWD=5ecretbeef SLACK_KEY=5ecretbeef", "MYSQL_PWD=*** SLACK_KEY=***"),
    ("token=5ecretbeef12345678, x", "token=***, x"),
    ("OPENAI: sk-proj-5ecretbeef_mnopqrstuv", "OPENAI: ***"),
    ("xoxb-5ecretbeef-1234 ghp_5ecretbeef0123456789abcd glpat-5ecretbeef0123456789", "*** *** ***"),
    ("eyJ5ecretbeef.eyJzdWIiOiIx.dozjgNryP4J3", "***"),
    (f"['--wandb-api-key', '{KEY}', '--lr', '1']", "['--wandb-api-key', '***', '--lr', '1']"),
    (f"--api-key '{KEY}' --wandb_key {KEY} --x", "--api-key '***' --wandb_key *** --x"),
    (f'{{\\"WANDB_API_KEY\\": \\"{KEY}\\"}}', '{\\"WANDB_API_KEY\\": \\"***\\"}'),
    (f'WANDB_API_KEY=\\"{KEY}\\"', 'WANDB_API_KEY=\\"***\\"'),
    (f"setenv WANDB_API_KEY {KEY}", "setenv WANDB_API_KEY ***"),
    (f"wandb_api_key          {KEY}", "wandb_api_key          ***"),
    (f"wandb: Appending key {KEY} to", "wandb: Appending key *** to"),
    (f"wandb.login(key='{KEY}')", "wandb.login(key='***')"),
    (f"the API Key is {KEY}", "the API Key is ***"),
    (f'"--hf-token", "{KEY}"', '"--hf-token", "***"'),
    (f"cloning https://{KEY}@git.example/x", "cloning https://***@git.example/x"),
    (f"GET https://x.example/c?sv=1&sig={KEY}&api-key=1", "GET https://x.example/c?sv=1&sig=***&api-key=***"),
    (f"curl -u me:{KEY} https://x", "curl -u me:*** https://x"),
    (f"sshpass -p {KEY} ssh x", "sshpass -p *** ssh x"),
    (f"Server=x;uid=me;pwd={KEY};", "Server=x;uid=me;pwd=***;"),
    ("-----BEGIN RSA PRIVATE KEY----- 5ecretbeef", "-----BEGIN RSA PRIVATE KEY-----***"),
]
PLAIN = [
    line(7).rstrip("\n") + " consumed tokens:  123456 | tokens per second: 12.0 |",
    "  eos_token ............ <|endoftext|>", '"num_experts_per_token": 0,', "  tokenizer_model ....... /a/b1234567890123",
    "Please set a HF_TOKEN to make requests", "WANDB API key detected. Enabling WANDB logging.", "KeyError: 'query_key_value'",
    "api_key=None, hub_token=<HUB_TOKEN>,", "wandb: Loaded credentials for https://api.wandb.ai", "forward pass: 12.3 ms",
    "loading /ckpt/5ec4e7bee40123456789abcdef0123456789abcd/key.pt", "git_hash=0123456789abcdef0123456789abcdef01234567",
    "sha256: 0123456789abcdef0123456789abcdef01234567", "PWD=/home/user/run12345", "moe_token_dispatcher_type=alltoall2024abc",
    "wandb: View run at https://wandb.ai/org/proj/runs/3xk29fz1", "curl: (7) Failed to connect to host:8080 port",
    "HEAD is now at 0123456 a fix", "--special-token-id 151643", "ssh://git@github.com/org/repo.git",
    "Bearer of bad news", "commit 0123456789abcdef0123456789abcdef01234567", "no submodule matching token 'norm'",
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), HELD)
def test_a_secret_is_masked(text: str, expected: str) -> None:
    """By its name, by its shape, in an address; what stands around it stays."""
    assert masked(text) == expected


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_secret_stays(text: str) -> None:
    """A training's own tokens and keys are what the monitor reads."""
    assert masked(text) is text


@examples(200)
@given(
    st.lists(st.sampled_from([*(text for text, _ in HELD), "=", ": ", "...", "token", "'", " ", "None", "***"])).map(
        "".join
    )
)
@example(f"curl -u me:{KEY} https://xsetenv WANDB_API_KEY {KEY}curl -u me:{KEY} https://x")
@example(f"ghp_{KEY}setenv WANDB_API_KEY {KEY}curl -u me:{KEY} https://x")
def test_masking_twice_is_masking_once(text: str) -> None:
    """However such pieces meet."""
    assert masked(masked(text)) == masked(text)
