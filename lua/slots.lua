-- The slots of a client: how many of its requests each process serves at the moment. The functions
-- here read and write them; guards.lua and report.lua use them.
--
-- A process says how many slots it holds, not how many more or fewer, so that a lost reply or a
-- repeated call changes nothing for long. Its attempts to take a slot are numbered. All attempts
-- up to some number have ended, and the process says how many slots they hold. A later attempt
-- that was granted is kept by its number until the process reports that it has ended. An attempt
-- that has ended already is late: nobody waits for it, and it takes nothing.
--
-- State: one string key.
--   value  if one process holds slots: its name; the number up to which its attempts have ended;
--          how many slots these hold; and the numbers of later attempts that hold one, with a comma
--          after each.
--          Else: when the key expires; a time up to which the slots of every process count; all
--          slots; then of each process its name, the two numbers as above, all slots that it holds,
--          until when it holds them, and the later attempts
--   TTL    milliseconds until no process holds a slot any more
-- Times are milliseconds since the key was made. The TTL says how long before the key expires it is
-- now. A process holds its slots for life after it last reported them, so the slots of a process
-- that died are free then. A missing key means that nobody holds a slot, so expiry loses nothing.

local find, gmatch, gsub, sub = string.find, string.gmatch, string.gsub, string.sub

-- look finds the slots of one process and of the others. The process says up to which number its
-- attempts have ended, settled, and how many slots these hold, held. A process that Redis does not
-- know, or that has not reported for life, is taken at its word.
-- The entries of the others stay where they are in list: from byte from to byte to, and from byte
-- after on. A string that Lua makes costs time for each byte, and the list of many processes is
-- long.
local function look(key, process, settled, held)
  local s = {
    settled = settled, held = held, later = '', count = 0, others = 0,
    list = '', from = 1, to = 0, after = 1
  }
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
  if first - now > 0 then -- the slots of every process count
    s.first, s.others, s.list, s.from, s.after = first + 0, total + 0, value, from, from
    local at, last = find(value, ' ' .. process .. ' ', from, true), nil
    if at then
      at, last, known, kept, all, later = find(value, '^ %S+ (%d+) (%d+) (%d+) %d+ ([%d,]*);', at)
    end
    if at then s.others, s.to, s.after = total - all, at - 1, last + 1 end
  else
    local list = {}
    local pattern = '( (%S+) (%d+) (%d+) (%d+) (%d+) ([%d,]*);)'
    for entry, name, of, these, slots, stop, more in gmatch(value, pattern) do
      if stop - now > 0 and name == process then
        known, kept, all, later = of, these, slots, more
      elseif stop - now > 0 then
        s.others, list[#list + 1] = s.others + slots, entry
        s.first = min(s.first or ends, stop)
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
  elseif settled == known then -- the later of two reports is the one of fewer slots
    s.held = min(held, kept + 0)
  else
    s.settled, s.held = known, kept + 0
  end
  return s
end

-- keep writes what look has found, and the slots that were taken since. A process without slots is
-- kept while one of its attempts may still come late: in doubt.
local function keep(key, process, s, doubt)
  local all = s.held + s.count
  local alone = s.from > s.to and s.after > #s.list
  if (all > 0 or doubt) and alone then
    call('SET', key, format('%s %d %d %s', process, s.settled, s.held, s.later), 'PX', life)
  elseif all > 0 or doubt then
    local ends = s.now + life
    local own = format(' %s %d %d %d %d %s;', process, s.settled, s.held, all, ends, s.later)
    call('SET', key, format('%d %d %d', ends, s.first or ends, s.others + all) ..
      sub(s.list, s.from, s.to) .. sub(s.list, s.after) .. own, 'PX', life)
  elseif not alone then
    call('SET', key, format('%s %d %d', s.ends, s.first, s.others) ..
      sub(s.list, s.from, s.to) .. sub(s.list, s.after), 'KEEPTTL')
  elseif s.ends then
    call('DEL', key)
  end
end
