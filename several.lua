-- A decision on several token buckets and calendar periods at once, in line, as nearly every call on several limits is one.
-- What is not plain, such as a block, is left to decide.lua, which has the contract of KEYS and ARGV. It comes first in the
-- scripts of those kinds.
--
-- Reply: for each key one integer, the level of a bucket or the tokens taken of a calendar period. The caller knows the rest.

if #KEYS > 1 and ARGV[1] == 'take' then
  local call, try, floor, ceil, format = redis.call, redis.pcall, math.floor, math.ceil, string.format
  local n, charges, plain = ARGV[2] + 0, ARGV[3] + 0, true
  local values, levels = {0, 0, 0}, {0, 0, 0}
  for i = 1, #KEYS do
    local at = 3 * i
    local drain, calendar, level, charge = ARGV[at + 1], ARGV[at + 2] == '0', 0, n
    local value = try('GET', KEYS[i])
    if not calendar then charge = n * ARGV[at + 2] end
    if value then
      level = tonumber(value)
      if not level or level < 0 then
        plain = false
        break
      end
      if not calendar then
        local ttl = call('PTTL', KEYS[i])
        if ttl <= 0 then
          plain = false
          break
        end
        drain = drain + 0
        if level < drain then -- else it is another limit's
          level = ttl * drain - level
        else
          level = ttl * drain
        end
      end
      if level > 9007199254740991 then -- 2^53 - 1
        plain = false
        break
      end
    end
    local room = ARGV[at + 3] - level
    if charges * charge > room then charges = floor(room / charge) end
    values[i], levels[i] = value, level
  end

  if plain then
    if charges > 0 then
      local charged = false -- by a command that fails where memory is full: then nothing is
      local tokens = charges * n
      for i = 1, #KEYS do
        local at = 3 * i
        if ARGV[at + 2] == '0' then
          if values[i] then
            call('INCRBY', KEYS[i], format('%d', tokens))
          else -- an hour of grace: see fixed_window.lua
            call('SET', KEYS[i], format('%d', tokens), 'PX', format('%d', ARGV[at + 1] + 3600000))
          end
          charged = true
        end
      end
      for i = 1, #KEYS do
        local at = 3 * i
        if ARGV[at + 2] ~= '0' then
          local drain, after = ARGV[at + 1] + 0, levels[i] + tokens * ARGV[at + 2]
          local ttl = ceil(after / drain)
          local rest = ttl * drain - after
          if charged and rest == 0 and values[i] == '0' then
            call('PEXPIRE', KEYS[i], format('%d', ttl))
          else
            call('SET', KEYS[i], format('%d', rest), 'PX', format('%d', ttl))
            charged = true
          end
        end
      end
    end
    if #KEYS < 3 then levels[3] = nil end
    return levels
  end
end

