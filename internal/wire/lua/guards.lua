-- A decision on limits together with a ban, slots or both: all or none. slots.lua precedes it. If
-- there are limits, so does a function decide, which decides on the limits alone (see decide.lua)
-- and returns its reply and the number of charges made.
--
-- KEYS[1 … k]        the limits' buckets and windows, see decide.lua; there may be none
-- KEYS[k + 1 …]      the ban, if any; then the slots of one key or more, if any; then, if the request
--                    waits, the turns of each; then, for a reset, the records of the buckets, see
--                    decide.lua
-- ARGV[1 … 3k + 3]   see decide.lua. The verbs are take and reset. A reset does not change slots
--                    if ARGV[2] is 0, the tokens of one charge of each bucket and window follow
-- Next               ban, slots or both
-- With a ban, next   milliseconds of the first ban
--                    milliseconds of the longest ban
--                    0 if no denial bans the client, 1 if every denial does, 2 if every denial but
--                    one for want of a slot does
--                    how many of the first limits are the client's; others' denials do not ban it
--                    1 if the first slots are the client's, else 0
-- With slots, next   the name of the process
--                    milliseconds until it is no longer known to wait for a slot; 0 if it does not
--                    then for each of the keys
--                      the number of slots. Each charge takes one
--                      the number up to which the process' attempts have ended
--                      the slots that these attempts hold
--                      the numbers of the attempts, one per charge, each followed by a comma. An
--                      attempt of a charge has the same place in the list of each key
-- ARGV[last]         k
--
-- Reply: a list: the reply for the limits (see decide.lua); with a ban, its remaining milliseconds
-- before and after this call; with slots, for each key the sum of how many were in use, or are for
-- processes that have waited for longer; if it waits, 2^21 times its place among the processes that
-- do, up to 1023; and 2^31 times how many slots other processes hold.
--
-- An attempt that has already ended, at any of the keys, is late: nobody waits for it, so its charge
-- takes no slot and is not denied. It takes tokens if one after it in the list is not late: the
-- process takes the first charges for those that were made.
--
-- State of a ban: one string key.
--   value  the ordinal of this ban (1, 2, …) and its length in milliseconds
--   TTL    twice the ban's length. In the second half the client is on probation: its next denial
--          bans it for twice as long
-- A missing key is a client that is neither banned nor on probation, so expiry loses nothing.
-- State of slots: see slots.lua.
-- State of turns: one string key, for as long as a process waits for a slot.
--   value  when the key expires, or later; then the name of each process that waits and until when it
--          is known to, in the order in which they wait. A process that gets a slot goes to the end
-- Times are milliseconds since the key was made; the TTL gives the current time. Without the key no
-- process has a turn, so expiry loses nothing but an order.

local find, sub, gsub = string.find, string.sub, string.gsub
local k = ARGV[#ARGV] + 0
local n = ARGV[2] + 0
local at, limits = (n > 0 and 3 or 4) * k + 3, {unpack(KEYS, 1, k)}
local with, ban, first, maximum, bans, own, ownSlots = ARGV[at + 1], nil, nil, nil, nil, nil, nil
if with ~= 'slots' then
  ban, first, maximum, bans = KEYS[k + 1], ARGV[at + 2] + 0, ARGV[at + 3] + 0, ARGV[at + 4] + 0
  own, ownSlots = ARGV[at + 5] + 0, ARGV[at + 6]
  at = at + 5
end
local process, waits, levels = ARGV[at + 2], ARGV[at + 3], 0
if with ~= 'ban' then levels = (#ARGV - at - 4) / 4 end
local maxSeen = 128 -- the most processes in a line that a call looks at
local placeUnit, othersUnit = 2097152, 2147483648 -- 2 ^ 21 and 2 ^ 31 are floats in Lua 5.4
local last = #KEYS - (levels > 0 and waits ~= '0' and levels or 0) -- of the slots

if ARGV[1] == 'reset' then
  if ARGV[3] ~= '0' then
    for i = #KEYS - k + 1, #KEYS do limits[#limits + 1] = KEYS[i] end
  end
  local reply = k > 0 and decide(limits, ARGV) or {}
  if type(reply) ~= 'table' then reply = {reply} end
  if ban then
    call('UNLINK', ban)
    reply[#reply + 1], reply[#reply + 2] = 0, 0
  end
  for j = 1, levels do
    local key = KEYS[k + (ban and 1 or 0) + j]
    if not pcall(readSlots, key, process, 0, 0) then
      call('PEXPIRE', key, life) -- perhaps that is all that it lacks
      if not pcall(readSlots, key, process, 0, 0) then call('UNLINK', key) end
    end
    reply[#reply + 1] = 0
  end
  return reply
end

local wanted = ARGV[3] + 0
local times, before = 0, 0
local function length(n) return floor(min(first * 2 ^ (n - 1), maximum)) end
if ban then
  local value = call('GET', ban)
  if value then
    local ttl = call('PTTL', ban)
    local ordinal, lasts = match(value, '^(%d+) (%d+)$')
    if not ordinal or ttl == -1 then error('the key is no ban') end
    times, before = ordinal + 0, max(0, ttl - lasts)
  end
end

-- readTurns reads which processes wait for a slot. Those that are before this one count. It looks at
-- the first of a long line, and takes those that follow for waiting.
local function readTurns(key)
  local turns = {key = key, ttl = 0, now = 0, ends = 0, before = 0, head = '', tail = ''}
  local value = try('GET', key)
  local ttl = type(value) == 'string' and call('PTTL', key) or 0
  local ends = ttl > 0 and match(value, '^%d+')
  if not ends or ends - ttl < 0 then return turns end -- Redis' clock was set back: the order is lost
  turns.ttl, turns.now, turns.ends = ttl, ends - ttl, ends + 0
  local list, at, seen = {}, #ends + 1, 0
  for name, stop, after in gmatch(value, ' (%S+) (%d+)()') do
    if stop - turns.now <= 0 then -- it waits no more
    elseif name == process then
      turns.before, turns.head, turns.known, list = #list, table.concat(list), true, {}
    else
      list[#list + 1] = ' ' .. name .. ' ' .. stop
    end
    at, seen = after, seen + 1
    if seen == maxSeen then break end
  end
  if turns.known then
    turns.tail = table.concat(list) .. sub(value, at)
    return turns
  end
  local from, to = find(value, ' ' .. process .. ' ', at, true)
  local last = (from or #value + 1) - 1
  turns.head = table.concat(list) .. sub(value, at, last)
  turns.before = #list + ceil((last - at + 1) / (#process + 3))
  if from then turns.known, turns.tail = true, match(value, '^%d+(.*)', to + 1) end
  return turns
end

-- writeTurns writes which processes wait: this one until stop, or no more.
local function writeTurns(turns, stop)
  local own = stop and format(' %s %d', process, stop) or ''
  local text, ends = turns.head .. own .. turns.tail, max(turns.ends, stop or 0)
  if text == '' then
    if turns.known then call('DEL', turns.key) end
  elseif stop or turns.known then -- where memory is full, the order is lost
    try('SET', turns.key, format('%d', ends) .. text, 'PX', expiry(turns.key, turns.ttl, ends - turns.now))
  end
end

local slots, mine, others = {}, wanted, wanted -- charges that the client's slots leave, and others'
local late = {} -- the places of late attempts
for j = 1, levels do
  local of, key = at + 4 * j, KEYS[last - levels + j]
  local s = readSlots(key, process, ARGV[of + 1] + 0, ARGV[of + 2] + 0, found[j])
  s.key, s.attempts = key, ARGV[of + 3]
  if s.later ~= '' then -- do not count a repeated call's own attempts
    local repeated = {}
    for attempt in gmatch(s.attempts, '%d+,') do repeated[attempt] = '' end
    local kept, all = gsub(s.later, '%d+,', repeated)
    if kept ~= s.later then
      local _, left = gsub(kept, ',', ',')
      s.later, s.count = kept, s.count - (all - left)
    end
  end
  s.used = s.others + s.held + s.count
  local place = 0
  for attempt in gmatch(s.attempts, '%d+') do
    place = place + 1
    if attempt - s.ended <= 0 then late[place] = true end
  end
  local room = max(0, ARGV[of] - s.used)
  if waits ~= '0' then
    s.turns = readTurns(KEYS[last + j])
    s.lacks, room = room <= s.turns.before, max(0, room - s.turns.before)
    s.used = max(s.used, ARGV[of] - room)
  end
  if j == 1 and ownSlots ~= '0' then mine = room else others = min(others, room) end
  slots[j] = s
end
while wanted > 0 and late[wanted] do wanted = wanted - 1 end
mine = min(mine, wanted)
local charges = max(0, min(mine, others))
if bans == limitBans then wanted = mine end
if before > 0 then charges = 0 end

local reply = {}
if k > 0 then
  ARGV[3] = format('%d', charges)
  reply, charges = decide(limits, ARGV)
  charges = max(0, charges)
  if type(reply) ~= 'table' then reply = {reply} end
end

for _, s in ipairs(slots) do
  if s.turns and charges > 0 then
    writeTurns(s.turns)
  elseif s.lacks then
    writeTurns(s.turns, s.turns.now + waits)
    s.place = min(s.turns.before + 1, 1023)
  end
end
for _, s in ipairs(slots) do
  if charges > 0 then
    local granted, place = {}, 0
    for attempt in gmatch(s.attempts, '%d+,') do
      if place == charges then break end
      place = place + 1
      if not late[place] then granted[#granted + 1] = attempt end
    end
    s.later, s.count = s.later .. table.concat(granted), s.count + #granted
    writeSlots(s.key, process, s)
  else
    pcall(writeEnded, s.key, s) -- where memory is full, the next call finds them again
  end
end

if ban then
  local after, granted = before, charges
  if charges < wanted and before == 0 and bans ~= noBans then
    if own < k or others < wanted then -- perhaps the denial is another client's
      local i, size = reply[1] == whole and 2 or 1, #reply == k and 1 or 5
      granted = mine
      for of = 1, own do
        local cost, n = tonumber(ARGV[3 * of + 2]), n > 0 and n or ARGV[3 * k + 3 + of] + 0
        granted = min(granted, floor((ARGV[3 * of + 3] - reply[i]) / (n * (cost or 1))))
        i = i + (cost and 1 or size)
      end
      granted = min(granted, reply.share or granted)
    end
    if granted <= charges then -- the first charge that is denied lacks what is the client's
      after = length(times + 1)
      local value = format('%d %d', times + 1, after)
      local done = try('SET', ban, value, 'PX', format('%d', 2 * after))
      if done.err then after = 0 end -- memory is full: the call is still denied
    end
  end
  reply[#reply + 1], reply[#reply + 2] = before, after
end
for _, s in ipairs(slots) do
  local used, others = min(s.used, placeUnit - 1), min(s.others, placeUnit - 1)
  reply[#reply + 1] = used + (s.place or 0) * placeUnit + others * othersUnit
end
return reply
