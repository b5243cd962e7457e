-- Reports the slots that one process holds, for many clients. slots.lua precedes it.
--
-- KEYS[i]       slots of client i; on a cluster node, of client 1 alone
-- ARGV[1]       the name of the process
-- ARGV[3i - 1]  the number up to which its attempts for client i have ended
-- ARGV[3i]      the slots that these attempts hold
-- ARGV[3i + 1]  1 if a late attempt may still come, else 0
-- On a cluster node, ARGV[5 …] are four for each further client: the key of its slots, which the
-- caller expects on this node, and the three above
--
-- Reply: a list of the numbers i of the keys that could not be written, for example because memory
-- is full and the key is new. A key of another type is not touched and not in the list. Of further
-- clients, the list has each key that cannot be read, as it may have left the node: it is to be
-- reported alone. cross_slot.lua says why such keys are not declared.
--
-- State: see slots.lua, which says why expiry loses nothing.

local failed = {}

-- unlocked makes a key writable where memory is full, and returns whether it could. Redis then
-- refuses HSET unless the script has written before, so unlocked writes the TTL unchanged. Redis
-- keeps a client's slots for as long as their processes report them. Where nothing may be written,
-- as on a replica, the script ends with that error.
local function unlocked(key)
  return call('PEXPIRE', key, call('PTTL', key)) == 1
end

local function report(i, key, at)
  local known, s = pcall(readSlots, key, ARGV[1], ARGV[at] + 0, ARGV[at + 1] + 0)
  -- A report that is late itself does not say that no attempt is.
  local function write() writeSlots(key, ARGV[1], s, ARGV[at + 2] == '1' or s.ended > ARGV[at] + 0) end
  if known and not pcall(write) and not (unlocked(key) and pcall(write)) or not known and i > #KEYS then
    failed[#failed + 1] = i
  end
end

for i, key in ipairs(KEYS) do report(i, key, 3 * i - 1) end
for i = 1, (#ARGV - 1 - 3 * #KEYS) / 4 do
  local at = 3 * #KEYS + 4 * i - 2
  report(#KEYS + i, ARGV[at], at + 1)
end
return failed
