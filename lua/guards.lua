-- A decision on limits together with a ban, slots or both: all or none. slots.lua precedes it. If
-- there are limits, so does a function decide, which decides on the limits alone (see decide.lua)
-- and returns its reply and the number of charges made.
--
-- KEYS[1 … k]        the limits' buckets and windows, see decide.lua; there may be none
-- KEYS[k + 1 …]      the ban, if any; then the slots, if any; then, for a reset, the records of the
--                    buckets, see decide.lua
-- ARGV[1 … 3k + 3]   see decide.lua. The verbs are take and reset. A reset does not change slots
-- ARGV[3k + 4]       ban, slots or both
-- With a ban, next   milliseconds of the first ban
--                    milliseconds of the longest ban
--                    0 if no denial bans the client, 1 if every denial does, 2 if every denial but
--                    one for want of a slot does
-- With slots, next   the number of slots. Each charge takes one
--                    the name of the process
--                    the number up to which its attempts have ended
--                    the slots that these attempts hold
--                    the numbers of the attempts, one per charge, each followed by a comma
-- ARGV[last]         k
--
-- Reply: a list: the reply for the limits (see decide.lua); with a ban, its remaining milliseconds
-- before and after this call; with slots, how many were in use.
--
-- An attempt that has already ended is late: nobody waits for it, so it takes nothing and is not
-- denied either.
--
-- State of a ban: one string key.
--   value  the ordinal of this ban (1, 2, …) and its length in milliseconds
--   TTL    twice the ban's length. In the second half the client is on probation: its next denial
--          bans it for twice as long
-- A missing key is a client that is neither banned nor on probation, so expiry loses nothing.
-- State of slots: see slots.lua.

local k = ARGV[#ARGV] + 0
local at, limits = 3 * k + 3, {unpack(KEYS, 1, k)}
local with, ban, first, maximum, bans, count = ARGV[at + 1], nil, nil, nil, nil, nil
if with ~= 'slots' then
  ban, first, maximum, bans = KEYS[k + 1], ARGV[at + 2] + 0, ARGV[at + 3] + 0, ARGV[at + 4] + 0
  at = at + 3
end
if with ~= 'ban' then count = ARGV[at + 2] + 0 end

if ARGV[1] == 'reset' then
  if ARGV[3] ~= '0' then
    for i = #KEYS - k + 1, #KEYS do limits[#limits + 1] = KEYS[i] end
  end
  local reply = k > 0 and decide(limits, ARGV) or {}
  if type(reply) ~= 'table' then reply = {reply} end
  if ban then
    call('DEL', ban)
    reply[#reply + 1], reply[#reply + 2] = 0, 0
  end
  if count then reply[#reply + 1] = 0 end
  return reply
end

local wanted = ARGV[3] + 0
local charges, times, before, slots, used = wanted, 0, 0
local function length(n) return min(first * 2 ^ (n - 1), maximum) end
if ban then
  local value = call('GET', ban)
  if value then
    local ttl = call('PTTL', ban)
    local n, lasts = match(value, '^(%d+) (%d+)$')
    if not n or ttl == -1 then error('the key is no ban') end
    times, before = n + 0, max(0, ttl - lasts)
  end
end
if count then
  slots = readSlots(KEYS[#KEYS], ARGV[at + 3], ARGV[at + 4] + 0, ARGV[at + 5] + 0)
  if slots.later ~= '' then -- do not count a repeated call's own attempts
    for attempt in gmatch(ARGV[at + 6], '%d+,') do
      local later, found = gsub(',' .. slots.later, ',' .. attempt, ',')
      slots.later, slots.count = sub(later, 2), slots.count - found
    end
  end
  used = slots.others + slots.held + slots.count
  for attempt in gmatch(ARGV[at + 6], '%d+') do
    if attempt - slots.ended <= 0 then wanted = wanted - 1 end -- late
  end
  charges = max(0, min(wanted, count - used))
  if bans == limitBans then wanted = charges end
end
if before > 0 then charges = 0 end

local reply = {}
if k > 0 then
  ARGV[3] = format('%d', charges)
  reply, charges = decide(limits, ARGV)
  charges = max(0, charges)
  if type(reply) ~= 'table' then reply = {reply} end
end

if slots and charges > 0 then
  local number = charges
  for attempt in gmatch(ARGV[at + 6], '%d+') do
    if number == 0 then break end
    if attempt - slots.ended > 0 then
      number = number - 1
      slots.later, slots.count = slots.later .. attempt .. ',', slots.count + 1
    end
  end
  writeSlots(KEYS[#KEYS], ARGV[at + 3], slots)
end

if ban then
  local after = before
  if charges < wanted and before == 0 and bans ~= noBans then
    after = length(times + 1)
    local value = format('%d %d', times + 1, after)
    local done = try('SET', ban, value, 'PX', format('%d', 2 * after))
    if done.err then after = 0 end -- memory is full: the call is still denied
  end
  reply[#reply + 1], reply[#reply + 2] = before, after
end
if slots then reply[#reply + 1] = used end
return reply
