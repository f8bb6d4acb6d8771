-- Calls of /v1/score whose items are all different. The arguments are those of benchmarks/calls/load.py.

wrk.method = "POST"

local head, item, tail, number, items
local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function init(args)
  head, item, tail = args[1], args[2], args[3]
  number, items = tonumber(args[4]), tonumber(args[5])
  not_200 = 0 -- global, so that done() can read it
end

function request()
  local texts = {}
  for n = 1, items do
    texts[n] = string.format(item, number)
    number = number + 1
  end
  return wrk.format(nil, nil, nil, head .. table.concat(texts, ",") .. tail)
end

function response(status)
  if status ~= 200 then
    not_200 = not_200 + 1
  end
end

function done(summary, latency)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.timeout
  for _, thread in ipairs(threads) do
    failed = failed + thread:get("not_200")
  end
  io.write(string.format(
    '\n{"calls": %d, "seconds": %f, "median_ms": %f, "p99_ms": %f, "not_200": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, failed))
end
