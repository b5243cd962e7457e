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
-- (1), a bound on the denials of each client that is not listed, and the numbers of decisions that were allowed,
-- denied, skipped and failed; then for each client a line with its count, the error of that, and its key. The
-- field "seen" has a line for each process, the last one last: its name, its last number, and the minute of it.

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

local function parse(text)
  local s = {clients = {}, outcomes = {}}
  local rest, outcomes, lines = string.match(text, '^1 (%d+)( %d+ %d+ %d+ %d+)\n(.*)$')
  if not rest then error('a report of another version') end
  s.rest = tonumber(rest)
  for n in string.gmatch(outcomes, '%d+') do s.outcomes[#s.outcomes + 1] = tonumber(n) end
  for count, err, client in string.gmatch(lines, '(%d+) (%d+) ([^\n]+)\n') do
    s.clients[client] = {tonumber(count), tonumber(err), client}
  end
  return s
end

local text = ARGV[4]
local field = string.format('%d', minute)
local before = call('HGET', key, field)
if before then
  -- As merge in summary.go, which says why.
  local a, b = parse(before), parse(text)
  local clients = {}
  for name, c in pairs(a.clients) do
    local d = b.clients[name] or {b.rest, b.rest}
    clients[#clients + 1] = {c[1] + d[1], c[2] + d[2], name}
  end
  for name, d in pairs(b.clients) do
    if not a.clients[name] then clients[#clients + 1] = {d[1] + a.rest, d[2] + a.rest, name} end
  end
  table.sort(clients, function(c, d) return c[1] > d[1] end)
  local rest, most = a.rest + b.rest, tonumber(ARGV[6])
  if #clients > most then rest = math.max(rest, clients[most + 1][1]) end
  local lines = {string.format('1 %.0f', rest)}
  for i, n in ipairs(a.outcomes) do lines[1] = lines[1] .. string.format(' %.0f', n + b.outcomes[i]) end
  for i = 1, math.min(#clients, most) do
    lines[i + 1] = string.format('%.0f %.0f ', clients[i][1], clients[i][2]) .. clients[i][3]
  end
  text = table.concat(lines, '\n') .. '\n'
end
call('HSET', key, field, text, 'seen', seen)
for _, name in ipairs(call('HKEYS', key)) do
  if name ~= 'seen' and tonumber(name) < oldest then call('HDEL', key, name) end
end
call('PEXPIRE', key, (ARGV[5] + 1) * 60000)
return 1
