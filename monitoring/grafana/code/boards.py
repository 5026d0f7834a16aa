"""The five dashboards."""
# ruff: noqa: E501, RUF001  (queries and texts for people stay on one line; the unit is a times sign)

from __future__ import annotations

from common import (
    AMBER,
    BLUE,
    GREEN,
    GREY,
    HOSTS,
    INSTANCES,
    RED,
    dashboard,
    heat,
    lines,
    number,
)
from grafana_foundation_sdk.builders import dashboard as board

# Panels whose data come from real GPUs only (dcgm-exporter, CUDA graphs): empty on a rehearsal, by nature.
NEEDS_GPU = "Needs GPUs: empty on a rehearsal."


def verdict() -> board.Dashboard:
    """Does speculation pay, right now?"""
    pays = [(None, RED), (0.98, AMBER), (1.02, GREEN)]
    return (
        dashboard("deploy-kit-verdict", "Verdict", "Does speculation pay on this box, right now?")
        .with_panel(
            number(
                "Speed-up against plain decoding",
                "Accept length x baseline step / cycle, over the last seconds. Above 1 speculation pays. Empty "
                "when no baseline receipt exists for this host, or when no request runs: it is never guessed.",
                [(f"deploy_kit_speculation_speedup_ratio{{{INSTANCES}}}", "{{instance}}")],
                unit="suffix: ×", thresholds=pays, width=8, height=9,
            )
        )
        .with_panel(
            number(
                "Accept length",
                "Tokens accepted by one verify of one request, bonus token included. Mean of the last minute.",
                [(f"deploy_kit:accept_length:mean_1m{{{INSTANCES}}}", "{{instance}}")],
                unit="suffix: tokens", thresholds=[(None, RED), (1.05, BLUE)], width=8, height=9,
            )
        )
        .with_panel(
            number(
                "Break-even accept length",
                "Cycle time / baseline step: below it speculation loses. Empty without a baseline receipt.",
                [(f"deploy_kit_breakeven_accept_length{{{INSTANCES}}}", "{{instance}}")],
                unit="suffix: tokens", thresholds=[(None, GREY)], width=8, height=9,
            )
        )
        .with_panel(
            lines(
                "Accept length against break-even",
                "The gap between the lines is the gain. When they cross, speculation starts to lose.",
                [
                    (f"deploy_kit:accept_length:mean_1m{{{INSTANCES}}}", "accepted, {{instance}}"),
                    (f"deploy_kit_breakeven_accept_length{{{INSTANCES}}}", "break-even, {{instance}}"),
                ],
                unit="suffix: tokens", minimum=1, width=16, height=10,
            )
        )
        .with_panel(
            number(
                "Verify share of the cycle",
                "The part of a cycle that is the target's verify; the rest is drafting and gaps.",
                [(f"deploy_kit:verify_share_of_cycle:ratio_5m{{{INSTANCES}}}", "{{instance}}")],
                unit="percentunit", thresholds=[(None, BLUE)], decimals=0, maximum=1, width=8, height=10,
            )
        )
        .with_panel(
            number(
                "Tokens per second",
                "Generation throughput of the engine, all requests together, last log interval.",
                [(f"deploy_kit:tokens_per_second:sum{{{INSTANCES}}}", "{{instance}}")],
                unit="suffix: tok/s", thresholds=[(None, BLUE)], decimals=0, width=8, height=8,
            )
        )
        .with_panel(
            lines(
                "Speed-up by concurrency band",
                "The same ratio, split by how many requests one verify serves: speculation pays at few, less at many.",
                [(f"deploy_kit:speculation_speedup:by_band{{{INSTANCES}}}", "{{band}} requests, {{instance}}")],
                unit="suffix: ×", thresholds=[(None, RED), (1, GREEN)], width=8,
            )
        )
        .with_panel(
            lines(
                "Verify time",
                "Median and 95th percentile of one verify forward; device time on GPUs, wall clock on a rehearsal.",
                [
                    (f"deploy_kit:verify_seconds:p50_1m{{{INSTANCES}}}", "p50, {{instance}}"),
                    (f"deploy_kit:verify_seconds:p95_1m{{{INSTANCES}}}", "p95, {{instance}}"),
                ],
                unit="s", width=8,
            )
        )
        .with_panel(
            number(
                "Plan",
                "Which plan is served, and whether it is a rehearsal (then no number here says anything about a GPU).",
                [(f"deploy_kit_plan_info{{{INSTANCES}}}", "{{profile}} · {{model}} · rehearsal {{rehearsal}}")],
                unit="none", thresholds=[(None, GREY)], decimals=0, width=24, height=3, graph=False,
            )
        )
    )  # fmt: skip


def anatomy() -> board.Dashboard:
    """Where a cycle's time goes, and which drafts are accepted."""
    return (
        dashboard("deploy-kit-anatomy", "Verify anatomy", "Where a cycle's time goes, and which drafts are accepted.")
        .with_panel(
            heat(
                "Verify time, every verify",
                "Each column is an interval, each row a bucket. Two bands mean two populations: batch sizes, or "
                "verifies inside and outside the CUDA graph.",
                f'sum by (le) (increase(deploy_kit_forward_seconds_bucket{{{INSTANCES},phase="verify"}}[$__rate_interval]))',
                unit="s",
            )
        )
        .with_panel(
            lines(
                "One cycle: draft, verify, draft extend, gap",
                "Seconds of each part per cycle, stacked. The gap is what is left: host work between the forwards.",
                [
                    (f"deploy_kit:cycle_part_seconds:mean_5m{{{INSTANCES}}}", "{{phase}}, {{instance}}"),
                    (f"deploy_kit:cycle_gap_seconds:mean_5m{{{INSTANCES}}}", "gap, {{instance}}"),
                ],
                unit="s", stacked=True,
            )
        )
        .with_panel(
            lines(
                "Cycle time",
                "Start of one verify to the start of the next of the same batch.",
                [
                    (f"histogram_quantile(0.5, sum by (instance, le) (rate(deploy_kit_spec_cycle_seconds_bucket{{{INSTANCES}}}[$__rate_interval])))", "p50, {{instance}}"),
                    (f"histogram_quantile(0.95, sum by (instance, le) (rate(deploy_kit_spec_cycle_seconds_bucket{{{INSTANCES}}}[$__rate_interval])))", "p95, {{instance}}"),
                ],
                unit="s",
            )
        )
        .with_panel(
            heat(
                "Accept length distribution",
                "How many verifies accepted 1, 2, 3, … tokens. A row at 1 is a verify that accepted no draft.",
                f"sum by (le) (increase(deploy_kit_spec_accept_length_bucket{{{INSTANCES}}}[$__rate_interval]))",
                unit="short", width=12, height=8,
            )
        )
        .with_panel(
            lines(
                "Acceptance by draft position",
                "Share of verifies in which the draft token at this position was accepted.",
                [(f"deploy_kit:accepted_position:ratio_5m{{{INSTANCES}}}", "position {{position}}, {{instance}}")],
                unit="percentunit", maximum=1,
            )
        )
        .with_panel(
            lines(
                "Requests in one verify",
                "Mean batch size of the verifies: read every time above together with it.",
                [(f"deploy_kit_verify_batch_requests{{{INSTANCES}}}", "{{instance}}")],
                unit="short",
            )
        )
        .with_panel(
            lines(
                "Forward time by phase",
                "Mean of each phase, prefill and plain decode included.",
                [(f"deploy_kit:forward_seconds:mean_5m{{{INSTANCES}}}", "{{phase}}, {{instance}}")],
                unit="s",
            )
        )
    )  # fmt: skip


def engine() -> board.Dashboard:
    """Requests, latency, memory and start-up."""
    rank = f'{INSTANCES},tp_rank="0"'

    def quantile(q: float, metric: str) -> str:
        return (
            f"histogram_quantile({q}, sum by (instance, le) "
            f"(rate(sglang:{metric}_bucket{{{INSTANCES}}}[$__rate_interval])))"
        )

    return (
        dashboard("deploy-kit-engine", "Engine", "Requests, latency, KV cache, CUDA graphs and start-up.")
        .with_panel(
            number(
                "Ready", "1 when a real completion has come back.",
                [(f"deploy_kit_engine_ready{{{INSTANCES}}}", "{{instance}}")],
                unit="bool_yes_no", thresholds=[(None, RED), (1, GREEN)], decimals=0, height=4,
            )
        )
        .with_panel(
            number(
                "Start-up progress", "Progress within the current phase, 100 % once ready; empty in phases without a measure.",
                [(f"deploy_kit_startup_progress_ratio{{{INSTANCES}}}", "{{instance}}")],
                unit="percentunit", thresholds=[(None, BLUE)], decimals=0, maximum=1, height=4,
            )
        )
        .with_panel(
            number(
                "KV cache used", "Share of the KV cache's tokens in use. Near 100 % requests wait or are retracted.",
                [(f"sglang:token_usage{{{rank}}}", "{{instance}}")],
                unit="percentunit", thresholds=[(None, GREEN), (0.85, AMBER), (0.95, RED)], decimals=0, maximum=1,
                height=4,
            )
        )
        .with_panel(
            number(
                "Passes in a CUDA graph", f"Share of decode and verify passes replayed from a graph. {NEEDS_GPU}",
                [(f"deploy_kit:decode_in_graph:ratio_5m{{{INSTANCES}}}", "{{instance}}")],
                unit="percentunit", thresholds=[(None, RED), (0.9, GREEN)], decimals=0, maximum=1, height=4,
            )
        )
        .with_panel(
            lines(
                "Requests", "Running and waiting requests.",
                [
                    (f"sum by (instance) (sglang:num_running_reqs{{{rank}}})", "running, {{instance}}"),
                    (f"sum by (instance) (sglang:num_queue_reqs{{{rank}}})", "waiting, {{instance}}"),
                ],
                unit="short",
            )
        )
        .with_panel(
            lines(
                "Throughput", "Generated tokens per second, last log interval.",
                [(f"deploy_kit:tokens_per_second:sum{{{INSTANCES}}}", "{{instance}}")],
                unit="suffix: tok/s",
            )
        )
        .with_panel(
            lines(
                "Time to first token", "Median and 95th percentile.",
                [(quantile(q, "time_to_first_token_seconds"), f"p{round(q * 100)}, {{{{instance}}}}")
                 for q in (0.5, 0.95)],
                unit="s",
            )
        )
        .with_panel(
            lines(
                "Inter-token latency", "Median and 95th percentile. With speculation tokens come in groups.",
                [(quantile(q, "inter_token_latency_seconds"), f"p{round(q * 100)}, {{{{instance}}}}")
                 for q in (0.5, 0.95)],
                unit="s",
            )
        )
        .with_panel(
            lines(
                "Time in queue", "95th percentile of the wait before the first forward.",
                [(quantile(0.95, "queue_time_seconds"), "p95, {{instance}}")],
                unit="s",
            )
        )
        .with_panel(
            lines(
                "Time in each start-up phase", "Where a start spends its time.",
                [(f"deploy_kit_startup_seconds{{{INSTANCES}}}", "{{phase}}, {{instance}}")],
                unit="s", stacked=True,
            )
        )
        .with_panel(
            lines(
                "Trouble reading the engine's metrics", "Scrape errors by reason, and exceptions in the plug-in.",
                [
                    (f"increase(deploy_kit_engine_scrape_errors_total{{{INSTANCES}}}[5m])", "{{reason}}, {{instance}}"),
                    (f"increase(deploy_kit_plugin_exceptions_total{{{INSTANCES}}}[5m])", "plug-in, {{instance}}"),
                ],
                unit="short",
            )
        )
    )  # fmt: skip


def host() -> board.Dashboard:
    """The machine: GPUs, PCIe, memory."""

    def gpu(title: str, text: str, expression: str, unit: str) -> object:
        return lines(title, f"{text} {NEEDS_GPU}", [(expression, "{{host}} GPU {{gpu}}")], unit=unit)

    return (
        dashboard("deploy-kit-host", "Host", "GPU power, clocks, PCIe, temperature and NUMA memory.", by="host")
        .with_panel(gpu("GPU power", "Draw of each card.", f"DCGM_FI_DEV_POWER_USAGE{{{HOSTS}}}", "watt"))
        .with_panel(gpu("GPU clock", "Streaming-multiprocessor clock.", f"DCGM_FI_DEV_SM_CLOCK{{{HOSTS}}} * 1e6", "hertz"))
        .with_panel(
            lines(
                "PCIe throughput",
                f"Bytes per second over the link: all-reduce traffic on a box without NVLink. {NEEDS_GPU}",
                [
                    (f"DCGM_FI_PROF_PCIE_RX_BYTES{{{HOSTS}}}", "in, {{host}} GPU {{gpu}}"),
                    (f"DCGM_FI_PROF_PCIE_TX_BYTES{{{HOSTS}}}", "out, {{host}} GPU {{gpu}}"),
                ],
                unit="Bps",
            )
        )
        .with_panel(gpu("GPU temperature", "Core temperature.", f"DCGM_FI_DEV_GPU_TEMP{{{HOSTS}}}", "celsius"))
        .with_panel(gpu("GPU utilisation", "Share of time with a kernel running.", f"DCGM_FI_DEV_GPU_UTIL{{{HOSTS}}}", "percent"))
        .with_panel(gpu("PCIe link width", "Lanes in use; 16 expected.", f"DCGM_FI_DEV_PCIE_LINK_WIDTH{{{HOSTS}}}", "short"))
        .with_panel(
            lines(
                "Memory", "Memory available, and the kernel's file cache (weights being read).",
                [
                    (f"node_memory_MemAvailable_bytes{{{HOSTS}}}", "available, {{host}}"),
                    (f"node_memory_Cached_bytes{{{HOSTS}}}", "file cache, {{host}}"),
                ],
                unit="bytes",
            )
        )
        .with_panel(
            lines(
                "NUMA memory free", "Free memory of each NUMA node: one node full and another empty costs speed.",
                [(f"node_memory_numa_MemFree{{{HOSTS}}}", "node {{node}}, {{host}}")],
                unit="bytes",
            )
        )
        .with_panel(
            lines(
                "CPU", "Share of CPU time in use.",
                [(f'1 - avg by (host) (rate(node_cpu_seconds_total{{{HOSTS},mode="idle"}}[$__rate_interval]))', "{{host}}")],
                unit="percentunit", maximum=1,
            )
        )
        .with_panel(
            lines(
                "Disk reads", "Bytes read per second: a load of 550 GB shows here.",
                [(f"sum by (host) (rate(node_disk_read_bytes_total{{{HOSTS}}}[$__rate_interval]))", "{{host}}")],
                unit="Bps",
            )
        )
    )  # fmt: skip


def fleet() -> board.Dashboard:
    """Hosts side by side."""
    ok = [(None, RED), (1, GREEN)]
    return (
        dashboard("deploy-kit-fleet", "Fleet", "Hosts side by side.", by="host")
        .with_panel(
            number("Engines ready", "One tile for each engine.", [(f"deploy_kit_engine_ready{{{HOSTS}}}", "{{instance}}")],
                   unit="bool_yes_no", thresholds=ok, decimals=0, width=12, height=5, graph=False)
        )
        .with_panel(
            number("Plan served", "Profile and plan id of each engine: a roll-out half done shows here.",
                   [(f"deploy_kit_plan_info{{{HOSTS}}}", "{{instance}}: {{profile}} {{plan_id}}")],
                   unit="none", thresholds=[(None, GREY)], decimals=0, width=12, height=5, graph=False)
        )
        .with_panel(
            lines("Speed-up", "Speculation against plain decoding, host by host.",
                  [(f"deploy_kit_speculation_speedup_ratio{{{HOSTS}}}", "{{instance}}")],
                  unit="suffix: ×", thresholds=[(None, RED), (1, GREEN)])
        )
        .with_panel(
            lines("Throughput", "Generated tokens per second.",
                  [(f"deploy_kit:tokens_per_second:sum{{{HOSTS}}}", "{{instance}}")], unit="suffix: tok/s")
        )
        .with_panel(
            lines("Verify p95", "The same plan should verify equally fast on equal hosts: the odd one has a host fault.",
                  [(f"deploy_kit:verify_seconds:p95_5m{{{HOSTS}}}", "{{instance}}")], unit="s")
        )
        .with_panel(
            lines("Accept length", "Depends on drafter and traffic, not on the host: the odd one is suspect.",
                  [(f"deploy_kit:accept_length:mean_5m{{{HOSTS}}}", "{{instance}}")], unit="suffix: tokens", minimum=1)
        )
        .with_panel(
            lines("Requests running", "Load of each engine.",
                  [(f'sum by (instance) (sglang:num_running_reqs{{{HOSTS},tp_rank="0"}})', "{{instance}}")], unit="short")
        )
        .with_panel(
            lines("Targets that answer", "Share of each host's scrape targets that are up.",
                  [(f"avg by (host) (up{{{HOSTS}}})", "{{host}}")], unit="percentunit", maximum=1)
        )
    )  # fmt: skip


BOARDS = {"verdict": verdict, "anatomy": anatomy, "engine": engine, "host": host, "fleet": fleet}
