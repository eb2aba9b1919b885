// Figures of a run as short texts: the same as monitor/serve/formats.py says, which a test compares.

export const DASH = "–";
export const SYMBOLS = {
  starting: "◔", training: "●", evaluating: "◑", saving: "◒", hung: "■", crashed: "✖", finished: "✔", lost: "?",
  critical: "■", warning: "▲", info: "◆",
};

// Python's %.4g
function general(value, digits) {
  if (value === 0) return "0";
  const exponent = Number(value.toExponential(digits - 1).split("e")[1]);
  const strip = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  if (exponent >= -4 && exponent < digits) return strip(value.toFixed(digits - 1 - exponent));
  const sign = exponent < 0 ? "-" : "+";
  const mantissa = strip(value.toExponential(digits - 1).split("e")[0]);
  return `${mantissa}e${sign}${String(Math.abs(exponent)).padStart(2, "0")}`;
}

export function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

export function number(value) {
  if (value === null || value === undefined || value === "") return DASH;
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  return size >= 1000 && size < 1e15 ? Math.round(value).toLocaleString("en-US") : general(value, 4);
}

export function count(value) {
  for (const [size, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"]]) {
    if (known(value) && Math.abs(value) >= size) return `${general(value / size, 4)} ${letter}`;
  }
  return number(value);
}

export function percent(ratio) {
  return known(ratio) ? `${(100 * ratio).toFixed(1)} %` : DASH;
}

export function duration(seconds) {
  if (!known(seconds)) return DASH;
  const s = Math.max(0, seconds);
  if (s < 60) return `${s.toFixed(1)} s`;
  const minutes = Math.floor(s / 60), hours = Math.floor(s / 3600), days = Math.floor(s / 86400);
  if (hours < 1) return `${minutes} min ${Math.floor(s % 60)} s`;
  if (days < 1) return `${hours} h ${minutes % 60} min`;
  return `${days.toLocaleString("en-US")} d ${hours % 24} h`;
}

export function instant(at) {
  if (!known(at)) return DASH;
  const date = new Date(Math.trunc(at) * 1000);
  return Number.isNaN(date.getTime()) ? DASH : `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

export function size(count) {
  return known(count) ? `${(count / 2 ** 30).toFixed(1)} GiB` : DASH;
}

export function plain(name, value) {
  if (name.endsWith("_at")) return instant(value);
  if (Array.isArray(value)) return value.map((item) => plain("", item)).join(", ");
  if (value !== null && typeof value === "object") {
    return Object.entries(value).map(([key, item]) => `${key} ${plain("", item)}`).join(", ");
  }
  return number(value);
}

// key -> [text, note, tone]; `state` and the keys of formats.LABELS
export function figures(run, now) {
  const losses = Object.entries(run.validation_loss || {}).map(([name, loss]) => `${name} ${number(loss)}`);
  return {
    state: state(run),
    iteration: progress(run),
    eta: known(run.eta) && run.state !== "hung" ? [run.eta > now ? duration(run.eta - now) : "overdue", instant(run.eta)] : [DASH],
    seconds_per_iteration: pace(run),
    tflops: [number(run.tflops), known(run.mfu) ? `MFU ${percent(run.mfu)}` : ""],
    samples_per_second: [number(run.samples_per_second)],
    tokens_per_second: [number(run.tokens_per_second)],
    lm_loss: [number(run.lm_loss)],
    validation_loss: [losses.join(", ") || DASH],
    grad_norm: [number(run.grad_norm)],
    learning_rate: [number(run.learning_rate)],
    loss_scale: [number(run.loss_scale)],
    global_batch_size: [number(run.global_batch_size)],
    max_memory_bytes: [size(run.max_memory_bytes)],
    progress_at: silence(run, now),
    at_risk_seconds: [
      duration(run.at_risk_seconds),
      known(run.last_checkpoint_iteration) ? `since checkpoint ${number(run.last_checkpoint_iteration)}` : "no checkpoint yet",
    ],
    restarts: [number(run.restarts), run.lost_iterations ? `${number(run.lost_iterations)} iterations lost` : ""],
    effective_training_time_ratio: [percent(run.effective_training_time_ratio)],
    consumed_tokens: [count(run.consumed_tokens)],
  };
}

function state(run) {
  const phase = run.phase || "", note = run.failure ? run.failure.split(":")[0] : phase !== run.state ? phase : "";
  return [`${SYMBOLS[run.state] || "?"} ${run.state}`, note.replaceAll("_", " ")];
}

function progress(run) {
  if (!known(run.iteration) || !run.train_iterations) return [number(run.iteration)];
  return [number(run.iteration), `of ${number(run.train_iterations)}, ${percent(run.iteration / run.train_iterations).replace(" ", "\u00a0")}`];
}

function pace(run) {
  const seconds = run.seconds_per_iteration, normal = run.baseline_seconds;
  if (!known(seconds) || !normal) return [number(seconds)];
  const change = 100 * (seconds / normal - 1);
  return [number(seconds), `normal ${number(normal)}, ${change < 0 ? "" : "+"}${change.toFixed(1)}\u00a0%`];
}

function silence(run, now) {
  if (!known(run.progress_at)) return [DASH];
  const silent = Math.max(0, now - run.progress_at), budget = run.budget_seconds;
  if (!known(budget)) return [`${duration(silent)} ago`];
  const tone = silent >= budget ? "bad" : silent >= budget / 2 ? "warn" : "";
  return [`${duration(silent)} ago`, `of ${duration(budget)} allowed`, tone];
}
