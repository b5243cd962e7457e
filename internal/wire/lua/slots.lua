-- The slots of a client: how many of its requests each process is serving. guards.lua and
-- report.lua use the functions here to read and write them.
--
-- A process reports how many slots it holds, not a difference, so that a lost reply or a repeated
-- call has no lasting effect. Its attempts to take a slot are numbered. All attempts up to some
-- number have ended, and the process reports how many slots these hold. A later attempt that was
-- granted is kept by its number until the process reports that it has ended. An attempt that has
-- already ended is late: nobody waits for it, so it takes nothing.
--
-- State: one string key.
--   value  if one process holds slots: its name; the number up to which its attempts have ended;
--          the slots that these hold; and the numbers of later attempts that hold a slot, each
--          followed by a comma.
--          Else: when the key expires; a time until which the slots of every process count; all
--          slots; a period if who reported last comes last, so that the first one's slots end first,
--          or ~ if the processes are in any order; then for each process its name, the two numbers as
--          above, all its slots, until when it holds them, the later attempts, and spaces if they were
--          more before: in a long list, a report that is no longer than the last one is written in place
--   TTL    milliseconds until no process holds a slot
-- Times are milliseconds since the key was made; the TTL gives the current time. A process holds
-- its slots for life after its last report, so a dead process' slots become free. A missing key
-- means that nobody holds a slot, so expiry loses nothing.

local byte, find, sub = string.byte, string.find, string.sub
local gmatch, gsub, rep = string.gmatch, string.gsub, string.rep
local shortest, longest = 1024, 24576 -- bytes of a list of processes that is written in place
local maxSpare = 64 -- spaces in an entry of such a list, which was longer before

-- budget is how many more entries of processes that report no more this script removes. The next one
-- removes the others: until then they count.
local budget = 256

-- inOrder returns a list in which the slots that end first come first.
local function inOrder(list)
  local all, ends, place = {}, {}, {}
  for entry, stop in gmatch(list, '( %S+ %d+ %d+ %d+ (%d+) [%d,]* *;)') do
    all[#all + 1] = entry
    ends[entry], place[entry] = stop + 0, #all
  end
  table.sort(all, function(a, b)
    if ends[a] ~= ends[b] then return ends[a] < ends[b] end
    return place[a] < place[b]
  end)
  return table.concat(all)
end

-- readSlots reads the slots of one process and of the others. The process' attempts up to number
-- ended have ended, and hold held slots. Its own report counts if Redis does not know the process,
-- or has had no report from it for life. The key's value may be known, or else nil. The entries of
-- the other processes stay in list: from byte from to byte to, and from byte after on. Copying
-- strings costs Lua time for each byte, and the list of many processes is long.
local function readSlots(key, process, ended, held, value)
  local s = {
    ended = ended, held = held, later = '', count = 0, others = 0,
    list = '', from = 1, to = 0, after = 1, ttl = 0, head = 0, order = '.'
  }
  if value == nil or type(value) == 'table' then value = call('GET', key) end
  if not value then return s end
  local ttl = call('PTTL', key)
  if ttl == -1 then error('the key has no expiry, so it has no slots') end
  if ttl <= 0 then return s end
  if ttl > life + 0 then -- Redis' clock was set back: no report is valid for longer
    ttl = life + 0
    try('SET', key, value, 'PX', life)
  end
  local ends, first, total, order, from = match(value, '^(%d+) (%d+) (%d+)([.~]?)()')
  local head = (from or 1) - 1
  local known, kept, all, later
  if not ends then -- a single process
    local name, number, of, at = match(value, '^(P%w+) (%d+) (%d+) ()')
    later = name and sub(value, at)
    if not name or find(later, '[^%d,]') or find(later, '%d$') then
      error('the value is not slots')
    end
    local _, count = gsub(later, ',', ',')
    total, ends, first, from = of + count, ttl, ttl, 1
    if name == process then
      known, kept, all, value = number, of, total, ''
    else
      value = format(' %s %s %s %d %d %s;', name, number, of, total, ttl, later)
    end
  end
  local now = ends - ttl
  if order == '~' and (first - now <= 0 or #value > longest) then
    value = inOrder(sub(value, from))
    from, order, head = 1, '.', 0
  end
  if first - now <= 0 then head = 0 end -- written anew
  while first - now <= 0 and from <= #value and budget > 0 do -- the first entry ends first
    local slots, stop, after = match(value, '^ %S+ %d+ %d+ (%d+) (%d+) [%d,]* *;()', from)
    if not slots then error('the value is not slots') end
    if stop - now > 0 then
      first = stop
    else
      total, from, budget = total - slots, after, budget - 1
    end
  end
  s.ends, s.now, s.ttl, s.first, s.others = ends, now, ttl, first + 0, total + 0
  s.list, s.from, s.after, s.head, s.order = value, from, from, head, order
  local at = not known and find(value, process .. ' ', from, true)
  while at and byte(value, at - 1) ~= 32 do -- the end of another name
    at = find(value, process .. ' ', at + 1, true)
  end
  if at then
    local begins, stop, last
    at, begins, known, kept, all, stop = find(value, '^ %S+ (%d+) (%d+) (%d+) (%d+) ', at - 1)
    last = find(value, ';', begins, true)
    later, s.to, s.after = match(sub(value, begins + 1, last - 1), '^([%d,]*) *$'), at - 1, last + 1
    if not later then error('the value is not slots') end
    s.others = total - all
    if stop - now <= 0 then return s end
  elseif known then
    s.others = 0
  end
  if not known then return s end
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
  local alone = s.from > s.to and s.after > #s.list
  if (all > 0 or doubt) and alone then
    call('SET', key, format('%s %d %d %s', process, s.ended, s.held, s.later), 'PX', life)
  elseif all > 0 or doubt then
    local ends = s.now + life
    local own = format(' %s %d %d %d %d %s', process, s.ended, s.held, all, ends, s.later)
    local head = format('%d %d %d', ends, s.first or ends, s.others + all)
    local spare = s.after - s.to - 2 - #own
    if #s.list >= shortest and #s.list <= longest and #head + 1 == s.head and spare >= 0 and spare <= maxSpare then
      call('SETRANGE', key, 0, head .. '~')
      call('SETRANGE', key, s.to, own .. rep(' ', spare) .. ';')
      call('PEXPIRE', key, expiry(key, s.ttl, life))
    else
      head = head .. (s.order == '~' and '~' or '.')
      call('SET', key, head .. sub(s.list, s.from, s.to) .. sub(s.list, s.after) .. own .. ';', 'PX',
        expiry(key, s.ttl, life))
    end
  elseif not alone then
    call('SET', key, format('%s %d %d%s', s.ends, s.first, s.others, s.order == '~' and '~' or '.') ..
      sub(s.list, s.from, s.to) .. sub(s.list, s.after), 'PX', expiry(key, s.ttl, s.ttl))
  elseif s.ends then
    call('DEL', key)
  end
end
