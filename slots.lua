-- The slots of those in flight: how many requests of a client each process serves.
--
-- A process says how many slots it holds, not how many more or fewer: so a lost reply and a repeated call change nothing for
-- long. Its attempts to take a slot are numbered. Up to a number all of them are settled, and it says how many slots these
-- hold. Each later one that was granted is kept by its number, until a larger number of settled ones comes. An attempt that is
-- settled already is late: nobody waits for it, and nothing is taken.
--
-- State: one string key.
--   value  the time at which the key expires, then of each process: its name, the number up to which its attempts are
--          settled, the slots that these hold, all slots that it holds, the time until which it holds them, and the
--          numbers of later attempts that hold one
--   TTL    milliseconds until the last process holds no slot any more
-- Times are milliseconds since the key was made. The TTL tells what time it is, so long before the key expires. A process
-- holds its slots for life after it last told of them, so those of one that has died are free then.

local call, gmatch, match, format = redis.call, string.gmatch, string.match, string.format
local min = math.min
local life = 10000

-- look finds the slots of the others and of one process, which says of itself what is settled and held. One that is not known, or
-- has not told of its slots for life, is taken at its word.
local function look(key, process, settled, held)
  local s = {key = key, process = process, settled = settled, held = held, later = '', count = 0, others = 0, list = '', now = 0}
  local value = call('GET', key)
  if not value then return s end
  local ttl = call('PTTL', key)
  if ttl == -1 then error('the key has no expiry, so it has no slots') end
  local ends, list = match(value, '^(%d+)(.*)$')
  if not ends then error('the value is not that of slots') end
  if ttl <= 0 then return s end
  s.ends, s.now = ends, ends - ttl
  for entry, name, known, kept, all, stop, later in gmatch(list, '( (%S+) (%d+) (%d+) (%d+) (%d+) ([%d,]*);)') do
    if stop - s.now > 0 and name ~= process then
      s.others, s.list = s.others + all, s.list .. entry
    elseif stop - s.now > 0 then
      known = known + 0
      s.later, s.count = later, all - kept
      if settled > known then -- later ones may be settled by now
        if later ~= '' then
          s.later, s.count = '', 0
          for number in gmatch(later, '%d+') do
            if number + 0 > settled then s.later, s.count = s.later .. number .. ',', s.count + 1 end
          end
        end
      elseif settled == known then -- the sooner, the fewer
        s.held = min(held, kept + 0)
      else
        s.settled, s.held = known, kept + 0
      end
    end
  end
  return s
end

-- keep writes what was found, and the slots that were taken since. A process that holds none is kept if it is in doubt whether an
-- attempt of it may still come late.
local function keep(s, doubt)
  local all = s.held + s.count
  if all > 0 or doubt then
    local ends = s.now + life
    call('SET', s.key, format('%d%s %s %d %d %d %d %s;', ends, s.list, s.process, s.settled, s.held, all, ends, s.later), 'PX', life)
  elseif s.list ~= '' then
    call('SET', s.key, s.ends .. s.list, 'KEEPTTL')
  elseif s.ends then
    call('DEL', s.key)
  end
end
