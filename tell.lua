-- What a process holds of the slots of many clients. It follows slots.lua.
--
-- KEYS[i]       slots of client i
-- ARGV[1]       the name of the process
-- ARGV[3i - 1]  the number up to which its attempts for client i are settled
-- ARGV[3i]      the slots that these hold
-- ARGV[3i + 1]  1 if a late attempt may still come, else 0
--
-- Reply: the numbers i of the keys that could not be written, as where memory is full. A key of another type is left alone.

local failed = {}
local try = redis.pcall
for i, key in ipairs(KEYS) do
  local settled, held, doubt = ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
  local plain = ARGV[1] .. ' ' .. settled .. ' ' .. held .. ' ' -- nobody else has slots, and Redis knows it all, as nearly always
  if held ~= '0' and try('GET', key) == plain and call('PTTL', key) ~= -1 then
    if try('SET', key, plain, 'PX', life).err then failed[#failed + 1] = i end
  else
    local known, s = pcall(look, key, ARGV[1], settled + 0, held + 0)
    if known and not pcall(keep, key, ARGV[1], s, doubt == '1') then failed[#failed + 1] = i end
  end
end
return failed
