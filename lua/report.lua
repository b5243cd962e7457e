-- A report of the slots that one process holds, of many clients. It follows slots.lua.
--
-- KEYS[i]       slots of client i
-- ARGV[1]       the name of the process
-- ARGV[3i - 1]  the number up to which its attempts for client i have ended
-- ARGV[3i]      how many slots these attempts hold
-- ARGV[3i + 1]  1 if a late attempt may still come, else 0
--
-- Reply: a list of the numbers i of the keys that could not be written, as where memory is full and
-- the key is new. A key of another type is left alone.
--
-- State: see slots.lua, which says why expiry loses nothing.

local failed = {}

-- unlocked returns whether a key can be written where memory is full. Redis then refuses SET,
-- unless the script has written before: so the TTL is written as it is. Redis knows a client's
-- slots for as long as their processes report them.
local function unlocked(key)
  return try('PEXPIRE', key, call('PTTL', key)) == 1
end

for i, key in ipairs(KEYS) do
  local settled, held, doubt = ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
  -- As nearly always, no other process has slots, and Redis knows what this one reports.
  local plain = ARGV[1] .. ' ' .. settled .. ' ' .. held .. ' '
  local write, s
  if held ~= '0' and try('GET', key) == plain and call('PTTL', key) ~= -1 then
    write = function() call('SET', key, plain, 'PX', life) end
  else
    local known
    known, s = pcall(look, key, ARGV[1], settled + 0, held + 0)
    if known then write = function() keep(key, ARGV[1], s, doubt == '1') end end
  end
  if write and not pcall(write) and not (unlocked(key) and pcall(write)) then
    failed[#failed + 1] = i
  end
end
return failed
