-- A decision on limits together with a ban, slots or both: all of it or none. It follows a function decide, which decides on the
-- limits alone (see decide.lua), and slots.lua.
--
-- KEYS[1 … k]        buckets and windows of the limits, as decide.lua documents them; there may be none
-- KEYS[k + 1 …]      the ban, if there is one; then the slots, if there are some; then for a reset the records of the buckets,
--                    if decide.lua says so
-- ARGV[1 … 3k + 3]   of the limits, as decide.lua documents them. The verbs are take and reset; a reset leaves slots alone
-- ARGV[3k + 4]       ban, slots or both
-- With a ban, next   how long the first one lasts in milliseconds
--                    how long the longest one lasts
--                    0 if a refusal bans nobody, 1 if every one bans the client, 2 if one for want of a slot does not
-- With slots, next   how many there are. Each charge takes one
--                    the name of the process
--                    the number up to which its attempts are settled
--                    the slots that these hold
--                    the numbers of the attempts, one for each charge, with a comma after each
-- ARGV[last]         k
--
-- Reply: what is replied of the limits, in one list; then of a ban, for how many milliseconds it lasts before and after this
-- call; then of slots, how many were in use.
--
-- An attempt that is settled already is late: nobody waits for it, so it takes nothing and is not refused either.
--
-- State of a ban: one string key.
--   value  for the how many-th time the client is banned, and for how many milliseconds
--   TTL    twice as long as the ban: in the second half the client is on probation, and its next refusal bans it for twice as long

local k = ARGV[#ARGV] + 0
local at, limits = 3 * k + 3, {unpack(KEYS, 1, k)}
local kind, ban, first, longest, bans, count = ARGV[at + 1]
if kind ~= 'slots' then
  ban, first, longest, bans = KEYS[k + 1], ARGV[at + 2] + 0, ARGV[at + 3] + 0, ARGV[at + 4]
  at = at + 3
end
if kind ~= 'ban' then count = ARGV[at + 2] + 0 end

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
local function length(n) return min(first * 2 ^ (n - 1), longest) end
if ban then
  local value = call('GET', ban)
  if value then
    local ttl = call('PTTL', ban)
    local n, lasts = match(value, '^(%d+) (%d+)$')
    if not n or ttl == -1 then error('the key is no ban') end
    times, before = n + 0, math.max(0, ttl - lasts)
  end
end
if count then
  slots = look(KEYS[#KEYS], ARGV[at + 3], ARGV[at + 4] + 0, ARGV[at + 5] + 0)
  if slots.later ~= '' then -- a repeated call takes nothing more
    for attempt in gmatch(ARGV[at + 6], '%d+,') do
      local later, found = gsub(',' .. slots.later, ',' .. attempt, ',')
      slots.later, slots.count = sub(later, 2), slots.count - found
    end
  end
  used = slots.others + slots.held + slots.count
  for attempt in gmatch(ARGV[at + 6], '%d+') do
    if attempt - slots.settled <= 0 then wanted = wanted - 1 end -- late
  end
  charges = math.max(0, min(wanted, count - used))
  if bans == '2' then wanted = charges end
end
if before > 0 then charges = 0 end

local reply = {}
if k > 0 then
  ARGV[3] = format('%d', charges)
  reply = decide(limits, ARGV)
  if type(reply) ~= 'table' then reply = {reply} end
  local size = #reply / k
  for i = 1, k do
    local cost = ARGV[3 * i + 2] + 0
    if cost == 0 then cost = 1 end
    charges = min(charges, math.floor((ARGV[3 * i + 3] - reply[size * (i - 1) + 1]) / (cost * ARGV[2])))
  end
  charges = math.max(0, charges)
end

if slots and charges > 0 then
  local number = charges
  for attempt in gmatch(ARGV[at + 6], '%d+') do
    if number == 0 then break end
    if attempt - slots.settled > 0 then
      number, slots.later, slots.count = number - 1, slots.later .. attempt .. ',', slots.count + 1
    end
  end
  keep(KEYS[#KEYS], ARGV[at + 3], slots)
end

if ban then
  local after = before
  if charges < wanted and before == 0 and bans ~= '0' then
    after = length(times + 1)
    local done = redis.pcall('SET', ban, format('%d %d', times + 1, after), 'PX', format('%d', 2 * after))
    if done.err then after = 0 end -- memory is full: it is refused all the same
  end
  reply[#reply + 1], reply[#reply + 2] = before, after
end
if slots then reply[#reply + 1] = used end
return reply
