-- The slots of a client: how many of its requests each process is serving. guards.lua and
-- report.lua use the functions here to read and write them.
--
-- A process reports how many slots it holds, not a difference, so that a lost reply or a repeated
-- call has no lasting effect. Its attempts to take a slot are numbered. All attempts up to some
-- number have ended, and the process reports how many slots these hold. A later attempt that was
-- granted is kept by its number until the process reports that it has ended. An attempt that has
-- already ended is late: nobody waits for it, so it takes nothing.
--
-- State: one hash key.
--   all      when the key expires; a time until which the slots of every process count; all slots;
--            how many processes there are; and, while the entries are walked for those that have
--            ended, the cursor of HSCAN and the first end seen
--   process  by its name: the number up to which its attempts have ended; the slots that these hold;
--            all its slots; until when it holds them; and the numbers of later attempts that hold a
--            slot, each followed by a comma
--   TTL      milliseconds until no process holds a slot, or longer
-- Times are milliseconds since the key was made, or since a process was alone; the TTL gives the
-- current time. A process holds its slots for life after its last report, so a dead process' slots
-- become free. A missing key means that nobody holds a slot, so expiry loses nothing. A server that
-- has taken over in the middle of a walk may skip entries: these count until the next walk.

local gmatch = string.gmatch

-- budget is about how many more entries this script looks at for those that have ended. The next one
-- looks at the others: until then they count.
local budget = 256

-- sums returns the entry all. own is the slots of the process itself, and processes how many there are.
local function sums(s, ends, own, processes)
  return format('%d %d %d %d%s', ends, s.first, s.others + own, processes, s.walk)
end

-- findEnded finds entries that have ended, as far as the budget goes, and counts them no more.
-- writeSlots or writeEnded removes them.
local function findEnded(key, s, cursor, low)
  if cursor == '' then cursor, low = '0', s.ends end
  local step = call('HSCAN', key, cursor, 'COUNT', budget)
  local entries = step[2]
  for i = 1, #entries, 2 do
    local name = entries[i]
    if name ~= 'all' and not s.gone[name] then
      local slots, stop = match(entries[i + 1], '^%d+ %d+ (%d+) (%d+) [%d,]*$')
      if not slots then error('the value is not slots') end
      if stop - s.now > 0 then
        low = min(low, stop + 0)
      else
        s.gone[name], s.others, s.processes = true, s.others - slots, s.processes - 1
      end
    end
  end
  budget = budget - floor(#entries / 2)
  if step[1] == '0' then s.first, s.walk = low + 0, '' else s.walk = format(' %s %d', step[1], low) end
  s.left = sums(s, s.ends, 0, s.processes)
end

-- removeEnded removes the entries that have ended. process, if any, stays: its entry was just written.
local function removeEnded(key, s, process)
  for name in pairs(s.gone) do
    if name ~= process then call('HDEL', key, name) end
  end
end

-- writeEnded writes what readSlots has found to have ended.
local function writeEnded(key, s)
  if not s.left then return end
  if call('HSET', key, 'all', s.left) == 0 then
    removeEnded(key, s)
  else -- the key has expired since it was read
    call('UNLINK', key)
  end
end

-- readSlots reads the slots of one process and of the others. The process' attempts up to number
-- ended have ended, and hold held slots. Its own report counts if Redis does not know the process,
-- or has had no report from it for life. The two entries may be known, or else nil.
local function readSlots(key, process, ended, held, entries)
  local s = {
    ended = ended, held = held, later = '', count = 0, gone = {},
    others = 0, processes = 0, ends = 0, now = 0, first = 0, ttl = 0, walk = ''
  }
  if not entries or entries.err then entries = call('HMGET', key, 'all', process) end
  local ttl, own = call('PTTL', key), entries[2]
  if ttl == -2 then return s end
  if ttl == -1 then error('the key has no expiry, so it has no slots') end
  local ends, first, total, processes, cursor, low =
    match(entries[1] or '', '^(%d+) (%d+) (%d+) (%d+) ?(%d*) ?(%d*)$')
  if not ends then error('the value is not slots') end
  s.found = true
  if ttl == 0 then return s end
  if ttl > life + 0 then -- Redis' clock was set back: no report is valid for longer
    ttl = life + 0
    try('PEXPIRE', key, life)
  end
  s.ttl, s.ends, s.now = ttl, ends + 0, ends - ttl
  s.first, s.others, s.processes = first + 0, total + 0, processes + 0
  if cursor ~= '' then s.walk = ' ' .. cursor .. ' ' .. low end
  if s.first <= s.now and budget > 0 then findEnded(key, s, cursor, low) end
  if not own or s.gone[process] then return s end
  local known, kept, all, stop, later = match(own, '^(%d+) (%d+) (%d+) (%d+) ([%d,]*)$')
  if not known then error('the value is not slots') end
  s.known, s.others, s.processes = true, s.others - all, s.processes - 1
  if stop - s.now <= 0 then return s end
  known = known + 0
  s.later, s.count = later, all - kept
  if ended > known then -- later attempts may have ended since
    local more = {}
    for number in gmatch(later, '%d+') do
      if number + 0 > ended then more[#more + 1] = number .. ',' end
    end
    s.later, s.count = table.concat(more), #more
  elseif ended == known then -- of two such reports, the later one has fewer slots
    s.held = min(held, kept + 0)
  else
    s.ended, s.held = known, kept + 0
  end
  return s
end

-- writeSlots writes the result of readSlots and the slots taken since. A process without slots is
-- kept while a late attempt of it may still come: doubt.
local function writeSlots(key, process, s, doubt)
  local all = s.held + s.count
  local function entry(stop) return format('%d %d %d %d %s', s.ended, s.held, all, stop, s.later) end
  if all > 0 or doubt then
    local ends = s.now + life
    if s.processes > 0 and
      call('HSET', key, 'all', sums(s, ends, all, s.processes + 1), process, entry(ends)) < 2 then
      call('PEXPIRE', key, expiry(key, s.ttl, life))
    else -- the process is alone, or the key has expired since it was read
      if s.found and s.ttl == 0 then call('UNLINK', key) end
      call('HSET', key, 'all', format('%s %s %d 1', life, life, all), process, entry(life))
      call('PEXPIRE', key, life)
    end
    removeEnded(key, s, process)
  elseif s.processes == 0 then
    if s.found then call('UNLINK', key) end
  else
    if s.known then s.gone[process], s.left = true, sums(s, s.ends, 0, s.processes) end
    writeEnded(key, s)
  end
end
