-- Adds the report of one process to a policy's minute.
--
-- KEYS[1]  the policy's reports
-- ARGV[1]  the name of the process
-- ARGV[2]  the number of the report, which grows with each report of the process
-- ARGV[3]  how many milliseconds ago the time of the report ended
-- ARGV[4]  the report: a summary
-- ARGV[5]  how many minutes are kept, beside the current one
-- ARGV[6]  how many clients are kept of each minute
-- ARGV[7]  how many processes are kept
--
-- Reply: 1, or 0 if the report is too old or Redis has it already, as after a reply that was lost.
--
-- State: a hash. The field of a minute, counted from 1970, has the summary of that minute: a line with its format
-- (1), the numbers of decisions that were allowed, denied, skipped and failed, and a bound on the denials, on the
-- tokens charged and on the tokens given back of each client that is not listed; then lines of clients with their
-- kind (d, c or r), the client's count, the error of that, and its key. The field "seen" has a line for each
-- process, the last one last: its name, its last number, and the minute of it.

local call = redis.call
local key, process, number = KEYS[1], ARGV[1], tonumber(ARGV[2])
local time = call('TIME')
local minute = math.floor((time[1] * 1000 + time[2] / 1000 - ARGV[3]) / 60000)
local current = math.floor(time[1] / 60)
local oldest = current - ARGV[5]
if minute < oldest then return 0 end

local seen = {}
for name, last, at in string.gmatch(call('HGET', key, 'seen') or '', '(%w+) (%d+) (%d+)\n') do
  if name == process then
    if tonumber(last) >= number then return 0 end
  elseif tonumber(at) >= oldest then
    seen[#seen + 1] = name .. ' ' .. last .. ' ' .. at .. '\n'
  end
end
seen[#seen + 1] = process .. ' ' .. ARGV[2] .. ' ' .. string.format('%d', current) .. '\n'
seen = table.concat(seen, '', math.max(1, #seen - ARGV[7] + 1))

local kinds, outcomes = {'d', 'c', 'r'}, 4

-- The numbers of a summary's first line, and its clients by kind.
local function parse(text)
  local s = {d = {}, c = {}, r = {}}
  local numbers, lines = string.match(text, '^1( [%d ]+)\n(.*)$')
  for n in string.gmatch(numbers or '', '%d+') do s[#s + 1] = tonumber(n) end
  if #s ~= outcomes + #kinds then error('a report of another version') end
  for kind, count, err, client in string.gmatch(lines, '([dcr]) (%d+) (%d+) ([^\n]+)\n') do
    s[kind][client] = {tonumber(count), tonumber(err), client}
  end
  return s
end

-- As merge in summary.go, which says why. Returns the clients of both, and a bound on the others.
local function merge(a, restA, b, restB, most)
  local clients = {}
  for name, c in pairs(a) do
    local d = b[name] or {restB, restB}
    clients[#clients + 1] = {c[1] + d[1], c[2] + d[2], name}
  end
  for name, d in pairs(b) do
    if not a[name] then clients[#clients + 1] = {d[1] + restA, d[2] + restA, name} end
  end
  table.sort(clients, function(c, d) return c[1] > d[1] end)
  local rest = restA + restB
  if #clients > most then rest = math.max(rest, clients[most + 1][1]) end
  return clients, rest
end

local text = ARGV[4]
local field = string.format('%d', minute)
local before = call('HGET', key, field)
if before then
  local a, b, most = parse(before), parse(text), tonumber(ARGV[6])
  local lines = {'1'}
  for i = 1, outcomes do lines[1] = lines[1] .. string.format(' %.0f', a[i] + b[i]) end
  for i, kind in ipairs(kinds) do
    local clients, rest = merge(a[kind], a[outcomes + i], b[kind], b[outcomes + i], most)
    lines[1] = lines[1] .. string.format(' %.0f', rest)
    for j = 1, math.min(#clients, most) do
      local c = clients[j]
      lines[#lines + 1] = string.format('%s %.0f %.0f ', kind, c[1], c[2]) .. c[3]
    end
  end
  text = table.concat(lines, '\n') .. '\n'
end
call('HSET', key, field, text, 'seen', seen)
for _, name in ipairs(call('HKEYS', key)) do
  if name ~= 'seen' and tonumber(name) < oldest then call('HDEL', key, name) end
end
call('PEXPIRE', key, (ARGV[5] + 1) * 60000)
return 1
