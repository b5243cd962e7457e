-- Token buckets that tenants share: charges of one tenant or several, in order, each of all buckets or
-- of none. Nearly every call on shared buckets is one of these, so the code is inline. lua/tenants.lua
-- decides what is not plain, such as a block. lua/shares.lua precedes it, and documents the tenants'
-- KEYS and ARGV.
--
-- KEYS[i], ARGV[1 … 3k + 3]   see decide.lua; the verb is take
--
-- Reply: the level found of each bucket, see script.lua; then the tenants' integers, see shares.lua.
-- State: see script.lua and shares.lua, which say why expiry loses nothing.

if ARGV[1] == 'take' and not hasGuards then
  local n, k, plain = ARGV[2] + 0, #KEYS - shared, true
  local levels, values, after, all = {}, {}, {}, {}
  for i = 1, k do
    local value, level = try('GET', KEYS[i]), 0
    plain = tonumber(ARGV[3 * i + 2])
    if not plain then break end
    if value then
      local rest, drain = tonumber(value), ARGV[3 * i + 1] + 0
      local ttl = rest and rest >= 0 and call('PTTL', KEYS[i]) or 0
      level = ttl * drain
      if ttl > 0 and rest < drain then level = level - rest end
      plain = ttl > 0 and level <= exact
      if not plain then break end
    end
    levels[i], values[i], after[i] = level, value, level
  end
  for i = 1, plain and shared or 0 do
    all[i] = readShares(i, levels[i])
    if all[i].now or all[i].passed then plain = false end
  end

  if plain then
    local denied, charged = {}, 0
    for run = 1, max(1, runs) do
      local j, charges = 1, ARGV[3] + 0
      if runs > 0 then
        j, charges = ARGV[runsAt + 2 * run - 1] + 0, ARGV[runsAt + 2 * run] + 0
      end
      local made = charges
      for i = 1, k do
        made = min(made, floor((ARGV[3 * i + 3] - after[i]) / (n * ARGV[3 * i + 2])))
        if i <= shared and made > 0 then made = fitShare(all[i], j, after[i], made, n) end
      end
      denied[j] = made < charges or charges == 0
      if made > 0 then
        charged = charged + made
        for i = 1, k do
          local level = after[i] + made * n * ARGV[3 * i + 2]
          if i <= shared then addShare(all[i], j, after[i], level) end
          after[i] = level
        end
      end
    end
    for i = 1, charged > 0 and k or 0 do
      local drain = ARGV[3 * i + 1] + 0
      local ttl = ceil(after[i] / drain)
      call('SET', KEYS[i], format('%d', ttl * drain - after[i]), 'PX', format('%d', ttl))
    end
    for i = 1, shared do
      local s = all[i]
      if charged > 0 then writeShares(s, ceil(after[i] / s.drain)) else removePassed(s) end
      for j = 1, tenants do
        if denied[j] then s.reply[3 * j + 1] = waitShare(s, j, after[i], n) end
      end
      appendShares(levels, s)
    end
    return levels
  end
end
