-- The slots of those in flight: how many requests of a client each process serves.
--
-- A process says how many slots it holds, not how many more or fewer: so a lost reply and a repeated call change nothing for
-- long. Its attempts to take a slot are numbered. Up to a number all of them are settled, and it says how many slots these
-- hold. Each later one that was granted is kept by its number, until a larger number of settled ones comes. An attempt that is
-- settled already is late: nobody waits for it, and nothing is taken.
--
-- State: one string key.
--   value  if one process holds slots: its name, the number up to which its attempts are settled, the slots that these hold, and the
--          numbers of later attempts that hold one. Else the time at which the key expires; a time up to which no process' slots are over; all slots; then of each process: its
--          name, what is settled and held, all slots that it holds, the time until which it holds them, and the later attempts
--   TTL    milliseconds until the last process holds no slot any more
-- Times are milliseconds since the key was made. The TTL tells what time it is, so long before the key expires. A process
-- holds its slots for life after it last told of them, so those of one that has died are free then.

local call, find, gmatch, gsub, match, sub, format = redis.call, string.find, string.gmatch, string.gsub, string.match, string.sub, string.format
local min = math.min
local life = 10000

-- look finds the slots of the others and of one process, which says of itself what is settled and held. One that is not known, or
-- has not told of its slots for life, is taken at its word. The entries of the others stay where they are in list, from one byte to
-- another and after a third: a string that Lua makes costs time for each byte, and the list of many processes is long.
local function look(key, process, settled, held)
  local s = {settled = settled, held = held, later = '', count = 0, others = 0, list = '', from = 1, to = 0, after = 1}
  local value = call('GET', key)
  if not value then return s end
  local ttl = call('PTTL', key)
  if ttl == -1 then error('the key has no expiry, so it has no slots') end
  local ends, first, total, from = match(value, '^(%d+) (%d+) (%d+)()')
  if not ends then -- one process
    local name, known, kept, later = match(value, '^(P%w+) (%d+) (%d+) ([%d,]*)$')
    if not name then error('the value is not that of slots') end
    local _, count = gsub(later, ',', ',')
    ends, first, total, from = ttl, ttl, kept + count, 1
    value = format(' %s %s %s %d %d %s;', name, known, kept, total, ttl, later)
  end
  local now, known, kept, all, later = ends - ttl, nil, nil, nil, nil
  s.ends, s.now = ends, now
  if first - now > 0 then -- all of them count
    s.first, s.others, s.list, s.from, s.after = first + 0, total + 0, value, from, from
    local at, last = find(value, ' ' .. process .. ' ', from, true), nil
    if at then at, last, known, kept, all, later = find(value, '^ %S+ (%d+) (%d+) (%d+) %d+ ([%d,]*);', at) end
    if at then s.others, s.to, s.after = total - all, at - 1, last + 1 end
  else
    local list = {}
    for entry, name, of, these, slots, stop, more in gmatch(value, '( (%S+) (%d+) (%d+) (%d+) (%d+) ([%d,]*);)') do
      if stop - now > 0 and name == process then
        known, kept, all, later = of, these, slots, more
      elseif stop - now > 0 then
        s.others, list[#list + 1], s.first = s.others + slots, entry, min(s.first or ends, stop)
      end
    end
    s.list = table.concat(list)
  end
  if not known then return s end
  known = known + 0
  s.later, s.count = later, all - kept
  if settled > known then -- later ones may be settled by now
    s.later, s.count = '', 0
    for number in gmatch(later, '%d+') do
      if number + 0 > settled then s.later, s.count = s.later .. number .. ',', s.count + 1 end
    end
  elseif settled == known then -- the sooner, the fewer
    s.held = min(held, kept + 0)
  else
    s.settled, s.held = known, kept + 0
  end
  return s
end

-- keep writes what was found, and the slots that were taken since. A process that holds none is kept if it is in doubt whether an
-- attempt of it may still come late.
local function keep(key, process, s, doubt)
  local all = s.held + s.count
  local alone = s.from > s.to and s.after > #s.list
  if (all > 0 or doubt) and alone then
    call('SET', key, format('%s %d %d %s', process, s.settled, s.held, s.later), 'PX', life)
  elseif all > 0 or doubt then
    local ends = s.now + life
    call('SET', key, format('%d %d %d', ends, s.first or ends, s.others + all) .. sub(s.list, s.from, s.to) .. sub(s.list, s.after) ..
      format(' %s %d %d %d %d %s;', process, s.settled, s.held, all, ends, s.later), 'PX', life)
  elseif not alone then
    call('SET', key, format('%s %d %d', s.ends, s.first, s.others) .. sub(s.list, s.from, s.to) .. sub(s.list, s.after), 'KEEPTTL')
  elseif s.ends then
    call('DEL', key)
  end
end
