-- A decision on token buckets that also takes tokens ahead, for a process to admit requests without
-- asking. The kind token and a function decide precede it (see decide.lua).
--
-- KEYS[1 … k]        the limits' buckets, see script.lua
-- KEYS[k + 1]        the lease bucket, which bounds what all processes hold
-- ARGV[1 … 3k + 3]   see decide.lua. The verb is take. ARGV[3] is the charges for callers
-- ARGV[3k + 4]       drain of the lease bucket
-- ARGV[3k + 5]       its cost
-- ARGV[3k + 6]       its capacity
-- ARGV[3k + 7]       further charges, to take ahead
-- ARGV[3k + 8]       tokens that this process took ahead before, and wants to hold for longer
--
-- Reply: a list: the level found of each bucket, see decide.lua. From these the process computes, by
-- the same arithmetic, how many tokens it may hold and how many charges were made.
--
-- Tokens that are held for longer stay charged in the limits' buckets. They count as taken ahead
-- anew. None are held for longer while a level is above the capacity: then the client is blocked or
-- in debt, or a policy with another floor has taken more.
--
-- State of the lease bucket: as that of a limit. It is charged with every token that is taken ahead
-- or held for longer.

local k = #KEYS - 1
local at, n = 3 * k + 3, ARGV[2] + 0
local lease = {key = KEYS[k + 1], drain = ARGV[at + 1] + 0, cost = ARGV[at + 2] + 0,
  limit = ARGV[at + 3] + 0}
local token = kind.token()
kind.token = token

local level = token.read(lease)
local room, held = max(0, floor((lease.limit - level) / lease.cost)), ARGV[at + 5] + 0

-- Each bucket is read once: Redis' clock goes on, and the process decides from one level, too.
local read, buckets = token.read, {}
for i = 1, held > 0 and k or 0 do
  local w = {key = KEYS[i], drain = ARGV[3 * i + 1] + 0, cost = ARGV[3 * i + 2] + 0,
    limit = ARGV[3 * i + 3] + 0}
  w.found = read(w)
  if w.found > w.limit then held = 0 end
  buckets[w.key] = w
end
function token.read(w)
  local before = buckets[w.key]
  if not before then return read(w) end
  for name, value in pairs(before) do w[name] = value end
  return before.found
end
held = min(held, room)

local own = ARGV[3] + 0
ARGV[3] = format('%d', own + min(ARGV[at + 4] + 0, floor((room - held) / n)))
local reply, charges = decide({unpack(KEYS, 1, k)}, ARGV)
if type(reply) ~= 'table' then reply = {reply} end
local taken = held + max(0, charges - own) * n
if taken > 0 and not pcall(token.take, lease, taken) then
  level = lease.limit -- memory is full: nothing is held
end
reply[k + 1] = level
return reply
